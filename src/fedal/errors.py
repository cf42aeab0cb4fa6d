"""Everything a user can cause. Each message says what was found, where, what was expected and what to try next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedalError(Exception):
    """A mistake or failure that is explained in one message and needs no traceback."""


class ConfigError(FedalError):
    """Something is wrong before a run starts: nothing has been written."""


class DataError(ConfigError):
    """A data set is missing, damaged, cut short or does not fit."""


class PartitionError(ConfigError):
    """The data cannot be divided among the clients as asked."""


class NotApplicableError(ConfigError):
    """The method does not fit these clients, for a reason that lies in the method."""


class FolderInUseError(ConfigError):
    """Another process works in the run folder at the moment."""


class WireError(FedalError):
    """A message that may not cross: wrong type, direction, shape, batch or numbers."""


class OutOfStepError(FedalError):
    """Client and server disagree about how many exchanges a round has."""


class RunError(FedalError):
    """A run failed on its way; the last checkpoint stands."""


class NonFiniteError(RunError):
    """A number became nan or infinite."""


class Stopped(FedalError):
    """The user asked to stop; the round was finished and saved."""


class CheckpointError(FedalError):
    """A checkpoint is missing, damaged, or belongs to another run."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean X? ` for the nearest known name; nothing where none is near."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), list(known), n=1)
    return f"Did you mean {near[0]}? " if near else ""
