"""The run folder: what is in it, how it is opened, and what can be read from it afterwards.

A folder from somebody else is data: nothing named in it is imported unless the caller says `trust`.
"""

from __future__ import annotations

import copy
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedal.config import Config, load_config, read_toml
from fedal.durable import TEMPORARY, write_atomically
from fedal.errors import CheckpointError, ConfigError, FedalError
from fedal.own_code import is_import_path

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedal.learners.base import Learner

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
            raise ConfigError(
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


def named_code(values: Mapping[str, Any]) -> list[str]:
    """The modules that a config makes fedal import: `package.module:object`."""
    models, tables = values.get("models", []), values.get("clients", [])
    names = [values.get("method"), *(models.split(",") if isinstance(models, str) else _as_list(models))]
    names += [table.get("model") for table in _as_list(tables) if isinstance(table, dict)]
    options = values.get("options", {})
    names += options.values() if isinstance(options, dict) else []
    return [name for name in names if isinstance(name, str) and is_import_path(name)]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def describe_environment() -> dict[str, Any]:
    """All that besides config and seed decides bits."""
    import torch

    from fedal import kernels

    return {
        "fedal": version("fedal"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "kernels": kernels.in_use(),
    }


def environment_differences(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """What may make a resumed run differ in bits from an uninterrupted one."""
    return [
        f"{key} was {saved.get(key)}, is now {present[key]}"
        for key in ("fedal", "torch", "machine", "cpu_capability", "kernels")
        if saved.get(key) != present[key]
    ]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a record file; a torn last line is not a row yet."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Run:
    """A run folder, for reading: `run.metrics`, `run.final`, `run.model("client-00")`."""

    def __init__(self, path: Path | str, *, trust: bool = False, models: Mapping[str, object] | None = None) -> None:
        self.folder = RunFolder(Path(path))
        self._trust = trust
        self._own_models = dict(models or {})
        self.config = self.folder.read_config(trust=trust)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def is_complete(self) -> bool:
        return self.folder.summary.exists()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read_rows(self.folder.metrics)

    @property
    def client_metrics(self) -> list[dict[str, Any]]:
        """The rows of clients.jsonl."""
        return read_rows(self.folder.clients)

    def frame(self) -> Any:
        """The metrics as a pandas frame."""
        import pandas

        return pandas.DataFrame(self.metrics)

    @property
    def final(self) -> dict[str, Any]:
        """The row that tables use: all clients at the end, on the whole test set."""
        rows = [row for row in self.metrics if row["final"]]
        if not rows:
            raise FedalError(f"{self.path} is not complete. Continue it with `fedal resume {self.path}`.")
        return rows[-1]

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return self.folder.read_environment()

    @property
    def client_models(self) -> dict[str, str]:
        """client -> the name of its model."""
        return dict(self._environment["clients"])

    def model(self, client: str) -> nn.Module:
        """The trained model of a client, in evaluation mode.

        A built-in one, a copy of the module given in Python, or code of the user's own if the folder is trusted.
        A model that is not a PyTorch module comes from `learner`.
        """
        from safetensors.torch import load_file
        from torch import nn

        from fedal.models import build

        weights = self._weights(client)
        name = self.client_models[client]
        own = self._own_models.get(client)
        if isinstance(own, nn.Module):
            return self._filled(copy.deepcopy(own), load_file(weights))
        if own is not None:
            raise FedalError(
                f'the model of client "{client}" is {name}, not an nn.Module: run.learner("{client}") gives the '
                f"learner, trained, and {weights} holds its arrays."
            )
        if name.startswith("<"):
            raise FedalError(
                f'the model of client "{client}" was given in Python as {name}; give such a one again: '
                f'fedal.load_run(path, models={{"{client}": ...}}).'
            )
        if is_import_path(name) and not self._trust:
            raise ConfigError(f'client "{client}" uses "{name}", code of its own. If you trust it, say trust=True.')
        model = build(name, tuple(self._environment["input_shape"]), int(self._environment["n_classes"]))
        return self._filled(model, load_file(weights))

    def learner(self, client: str) -> Learner:
        """The learner that was given in Python for a client, filled with the trained arrays of this run."""
        from safetensors.torch import load_file
        from torch import nn

        weights, own = self._weights(client), self._own_models.get(client)
        if own is None or isinstance(own, nn.Module):
            raise FedalError(
                f'no learner was given for client "{client}": run.model("{client}") gives a PyTorch module; for '
                f'others say fedal.load_run(path, models={{"{client}": learner}}).'
            )
        learner = cast("Learner", own)
        learner.load_state_dict({**learner.state_dict(), "model": load_file(weights)})
        return learner

    def _weights(self, client: str) -> Path:
        if client not in self.client_models:
            raise FedalError(f'{self.path} has no client "{client}". It has: {", ".join(self.client_models)}.')
        weights = self.folder.models / f"{client}.safetensors"
        if not weights.exists():
            raise FedalError(
                f"{weights} is missing: the run is not complete. Continue it with `fedal resume {self.path}`."
            )
        return weights

    def _filled(self, model: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
        if self.config.precision == "fp64":
            model = model.double()  # before the weights go in, or they would be rounded
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise FedalError(
                f"{self.path}: the saved weights do not fit {type(model).__name__} ({reason}). Another version of the "
                "model made this run; `environment.json` says which version of fedal."
            ) from None
        return model.eval()


def load_run(path: Path | str, *, trust: bool = False, models: Mapping[str, object] | None = None) -> Run:
    """Opens a run folder for reading; `models` are modules like those that were given to `run` in Python."""
    return Run(path, trust=trust, models=models)


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
