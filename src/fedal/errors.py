"""Errors that a user can cause. Each message says what was found, where, what was expected and what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class FedalError(Exception):
    """A mistake or failure that one message explains, without a traceback."""


class ConfigError(FedalError):
    """A mistake found before a run starts; nothing has been written."""


class DataError(ConfigError):
    """A dataset is missing, damaged, truncated or does not fit."""


class PartitionError(ConfigError):
    """The data cannot be split among the clients as requested."""


class TooFewSamplesError(PartitionError):
    """A division leaves a client with fewer samples than `min_samples`."""

    def __init__(self, found: str, remedies: Sequence[str], fewest: int) -> None:
        *first, last = remedies
        super().__init__(f"{found}. Try {', '.join(first)}{', or ' if first else ''}{last}.")
        self.found, self.remedies, self.fewest = found, remedies, fewest

    def __reduce__(self) -> tuple[type[TooFewSamplesError], tuple[str, Sequence[str], int]]:
        return type(self), (self.found, self.remedies, self.fewest)  # an error may cross to another process


class NotApplicableError(ConfigError):
    """The method cannot work with these clients."""


class FolderInUseError(ConfigError):
    """Another process is using the run folder."""


class WireError(FedalError):
    """A message that the wire rejects: wrong type, direction, shape, batch or dtype."""


class OutOfStepError(FedalError):
    """Client and server disagree on the number of exchanges in a round."""


class RunError(FedalError):
    """A run failed; its last checkpoint is still valid."""


class NonFiniteError(RunError):
    """A value became NaN or infinite."""


class Stopped(FedalError):
    """The user stopped the run; the current round was finished and saved."""


class CheckpointError(FedalError):
    """A checkpoint is missing, damaged, or belongs to another run."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean X? ` for the closest known name; an empty string if none is close."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), list(known), n=1)
    return f"Did you mean {near[0]}? " if near else ""
