"""The run folder: the names of its files, the lock, and what it says of itself.

A folder from somebody else is data: nothing named in it is imported unless the caller says `trust`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedal.config import Config, load_config, read_toml
from fedal.durable import TEMPORARY, write_atomically
from fedal.errors import CheckpointError, ConfigError, FolderInUseError
from fedal.own_code import named_code

LOCK = "run.lock"


@dataclass(frozen=True)
class RunFolder:
    """The names of the files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def clients(self) -> Path:
        return self.path / "clients.jsonl"

    @property
    def partition(self) -> Path:
        return self.path / "partition.npz"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def summary(self) -> Path:
        """Written last: its presence says that the run is complete."""
        return self.path / "summary.json"

    @property
    def failure(self) -> Path:
        """Why the run stopped, if it failed."""
        return self.path / "failure.json"

    @property
    def federation(self) -> Path:
        """Of a server's folder: which federation it serves."""
        return self.path / "federation.json"

    @property
    def is_server(self) -> bool:
        return self.federation.exists()

    def refuse_if_taken(self) -> None:
        """Raises when the folder holds something already, another run above all."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; expected a folder for the run. Choose another --out.")
        if self.config.exists():
            raise ConfigError(
                f"{self.path} holds another run. Continue it with `fedal resume {self.path}`, or choose another --out."
            )
        strangers = [p.name for p in self.path.iterdir() if p.name != LOCK and not p.name.startswith(TEMPORARY)]
        if strangers:
            raise ConfigError(f"{self.path} is not empty (it holds {strangers[0]}). Choose another --out.")

    def create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.path}: the folder cannot be made ({error.strerror}). Choose another --out."
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time works in the folder; the lock goes with the process, however it ends."""
        import fcntl  # not on Windows, where reading a folder works

        try:
            descriptor = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise ConfigError(f"{self.path}: nothing can be written there ({error.strerror}).") from None
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
        if not trust:
            self._refuse_imports()
        before_stacks = "stacked" not in read_toml(self.config)  # a run of an older version goes on as it began
        return load_config(self.config, {"stacked": False} if before_stacks else {})

    def read_environment(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.environment.read_bytes())
            return {"clients": {}, **content}
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{self.environment}: cannot be read ({type(error).__name__}: {error}).") from None

    def _refuse_imports(self) -> None:
        imported = named_code(read_toml(self.config))
        if imported:
            raise ConfigError(
                f'{self.path} names code of its own, "{imported[0]}". Running it is running somebody\'s program: '
                "if you trust the folder, say --trust (in Python: trust=True)."
            )


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")


def without_nan(value: Any) -> Any:
    """JSON knows no nan and no infinity: null."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
