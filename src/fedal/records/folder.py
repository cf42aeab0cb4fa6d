"""The run folder: its file names, its lock, its config and its environment.

A folder is treated as data: no code named in it is imported unless the caller passes `trust`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fedal.config import Config, load_config, read_toml
from fedal.durable import TEMPORARY, open_in_place, read_bounded, refuse_pipe, write_atomically
from fedal.errors import CheckpointError, ConfigError, FolderInUseError
from fedal.user_code import named_code

LOCK = "run.lock"

Read = TypeVar("Read")


class RunFolder:
    """The paths of the files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.clients = path / "clients.jsonl"
        self.partition = path / "partition.npz"
        self.checkpoints = path / "checkpoints"
        self.rest = path / "rest"  # the states of clients at rest, to which checkpoints refer
        self.models = path / "models"
        self.best_models = path / "best"  # with keep_best
        self.environment = path / "environment.json"
        self.scores = path / "scores.json"  # of the final models, if the run records more than accuracy
        self.summary = path / "summary.json"  # written last: if it exists, the run is complete
        self.failure = path / "failure.json"  # why the run stopped, if it failed
        self.federation = path / "federation.json"  # in a server's folder: the federation it serves
        self.participation = path / "participation.jsonl"  # who took part, or at a server who missed which exchange

    @property
    def is_server(self) -> bool:
        return self.federation.exists()

    def refuse_if_taken(self) -> None:
        """Raises ConfigError when the folder already holds a run or other files."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; expected a folder for the run. Choose another --out.")
        if self.config.exists():
            raise ConfigError(
                f"{self.path} holds another run. Continue it with `fedal resume {self.path}`, or choose another --out."
            )
        others = [p.name for p in self.path.iterdir() if p.name != LOCK and not p.name.startswith(TEMPORARY)]
        if others:
            raise ConfigError(f"{self.path} is not empty (it holds {others[0]}). Choose another --out.")

    def create(self, *, private: bool = False) -> None:
        """Creates the folder; a private one is closed to others from the start, and so is an empty one that exists."""
        try:
            self.path.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
            if private and not any(self.path.iterdir()):
                self.path.chmod(0o700)
        except OSError as error:
            raise ConfigError(
                f"{self.path}: the folder cannot be created ({error.strerror}). Choose another --out."
            ) from None

    @property
    def open_to_others(self) -> str:
        """A warning about a folder that others may read; empty otherwise."""
        if not self.path.stat().st_mode & 0o077:
            return ""
        return (
            f"warning: others can read {self.path}, which holds private state. Close it with `chmod 700 {self.path}`."
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for this process; the lock is released when the process ends, however it ends."""
        import fcntl  # missing on Windows, where folders can still be read

        try:
            descriptor = open_in_place(self.path / LOCK, os.O_RDWR)
        except OSError as error:
            raise ConfigError(f"{self.path}: the folder is not writable ({error.strerror}).") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FolderInUseError(
                f"{self.path} is in use by another process. Wait for it, or choose another --out."
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)

    def read_config(self, *, trust: bool) -> Config:
        """The resolved config; refuses to import modules it names unless the folder is trusted."""
        if not self.config.exists():
            raise ConfigError(f"no run in {self.path} (there is no config.toml). Start one with `fedal run`.")
        refuse_pipe(self.config)
        if not trust and (imported := named_code(read_toml(self.config))):
            raise ConfigError(
                f'{self.path} names custom code, "{imported[0]}", which reading the config would execute. '
                "If you trust the folder, pass --trust (in Python: trust=True)."
            )
        return load_config(self.config, {})

    def read_environment(self) -> dict[str, Any]:
        return read_json(self.environment, lambda found: {"clients": {}, **found})


def read_json(path: Path, parse: Callable[[Any], Read]) -> Read:
    """Returns `parse` of a JSON file that fedal wrote; raises CheckpointError on any failure."""
    try:
        return parse(json.loads(read_bounded(path)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")


def without_nan(value: Any) -> Any:
    """The value with nan and infinity, which JSON lacks, replaced by None."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
