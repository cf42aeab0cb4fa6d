"""Reads a run folder and raises on any damage; `fedal report` has a tolerant reader for folders of any origin."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedal.data.partition import effective_classes
from fedal.data.split import SavedCounts, read_counts
from fedal.durable import read_bounded
from fedal.errors import CheckpointError, ConfigError, FedalError
from fedal.metrics.table import Column, first_column
from fedal.records.folder import RunFolder, read_json
from fedal.records.statistics import final_row
from fedal.user_code import is_import_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fedal.learners.base import Learner

MAX_RECORD = 1 << 32  # bytes; a row for every client and evaluation


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a record file; a torn last line is skipped."""
    if not path.exists():
        return []
    try:
        text = read_bounded(path, MAX_RECORD).decode()
        return [dict(json.loads(line)) for line in text[: text.rfind("\n") + 1].split("\n")[:-1]]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


class Run:
    """A run folder, read-only: `run.metrics`, `run.final`, `run.model("client-00")`."""

    def __init__(self, path: Path | str, *, trust: bool = False, models: Mapping[str, object] | None = None) -> None:
        self.folder = RunFolder(Path(path))
        self._trust = trust
        self._custom_models = dict(models or {})
        self.config = self.folder.read_config(trust=trust)

    def __repr__(self) -> str:
        """`Run('runs/a': fedal on digits, seed 0, 50 of 400 iterations, accuracy 0.9312)`, as far as it has come."""
        config, rows = self.config, self.metrics
        last = rows[-1] if rows else {}
        total = config.total_rounds * config.tau
        length = f"{total} iterations" if self.is_complete else f"{last.get('iteration', 0)} of {total} iterations"
        first = first_column(last)
        value = f", {first.metric.words} {last[first.key]:.4f}" if first.key in last else ""
        return f"Run({str(self.path)!r}: {config.title}, {length}{value})"

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
        """The metrics as a pandas DataFrame; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise FedalError(
                "run.frame() needs pandas. Type: pip install 'fedal[pandas]'. run.metrics has the same rows without it."
            ) from None
        return pandas.DataFrame(self.metrics)

    @property
    def final(self) -> dict[str, Any]:
        """The final row, which tables use: all clients on the whole test set."""
        row = final_row(self.metrics)
        if row is None:
            raise FedalError(f"{self.path} is not complete. {self._advice}")
        return row

    @property
    def scores(self) -> dict[str, Any]:
        """The final models by client and data: metrics, intervals and tables (docs/metrics.md)."""
        if not self.folder.scores.exists():
            raise FedalError(
                f"{self.path} has no scores.json: the run records accuracy alone, or is not complete. "
                "Try --set metrics=all."
            )
        return read_json(self.folder.scores, dict)

    @property
    def headline(self) -> Column:
        """The metric that tables show first."""
        return first_column(self.metrics[0] if self.metrics else {})

    @property
    def _advice(self) -> str:
        again = "the same `fedal serve`" if self.folder.is_server else f"`fedal resume {self.path}`"
        return f"Continue it with {again}."

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return self.folder.read_environment()

    @property
    def client_models(self) -> dict[str, str]:
        """client -> the name of its model."""
        return dict(self._environment["clients"])

    @cached_property
    def _counts(self) -> SavedCounts:
        if self.folder.is_server:
            raise FedalError(f"{self.path} is a server's folder: it does not know the data, each site keeps its own.")
        return read_counts(self.folder.partition)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """Private samples of each client by class.  -> (N, K)"""
        return self._counts.class_counts

    @property
    def effective_classes(self) -> float:
        """exp(entropy of a client's class shares), mean over clients: 1 is a single class each."""
        return effective_classes(self.class_counts)

    @property
    def unassigned(self) -> int:
        """Training samples that belong to no client and not to the public set."""
        return self._counts.leftovers

    def model(self, client: str) -> nn.Module:
        """The trained model of a client, in evaluation mode.

        It is a built-in model, a copy of the module passed in Python, or custom code if the folder is trusted.
        Use `learner` for a model that is not a PyTorch module.
        """
        from safetensors.torch import load_file
        from torch import nn

        from fedal.models import LEARNERS, build

        weights = self._weights(client)
        name = self.client_models[client]
        custom = self._custom_models.get(client)
        if isinstance(custom, nn.Module):
            return self._filled(copy.deepcopy(custom), load_file(weights))
        if custom is not None:
            raise FedalError(
                f'the model of client "{client}" is {name}, not an nn.Module: run.learner("{client}") returns '
                f"the trained learner, and {weights} holds its arrays."
            )
        if name.startswith("<"):
            raise FedalError(
                f'the model of client "{client}" was passed in Python as {name}; pass a model of that kind again: '
                f'fedal.load_run(path, models={{"{client}": ...}}).'
            )
        if is_import_path(name) and not self._trust:
            raise ConfigError(f'client "{client}" uses custom code, "{name}". If you trust it, pass trust=True.')
        if name in LEARNERS:
            raise FedalError(
                f'the model of client "{client}" is {name}, not an nn.Module: use run.learner("{client}").'
            )
        model = build(name, tuple(self._environment["input_shape"]), int(self._environment["n_classes"]))
        return self._filled(model, load_file(weights))

    def learner(self, client: str) -> Learner:
        """The learner of a client whose model is outside PyTorch, loaded with the trained arrays of this run."""
        from safetensors.torch import load_file
        from torch import nn

        from fedal.models import LEARNERS, build_any

        weights, custom = self._weights(client), self._custom_models.get(client)
        name = self.client_models[client]
        if custom is None and (name in LEARNERS or (is_import_path(name) and self._trust)):
            custom = build_any(name, tuple(self._environment["input_shape"]), int(self._environment["n_classes"]))
        if custom is None or isinstance(custom, nn.Module):
            raise FedalError(
                f'no learner was passed for client "{client}": run.model("{client}") returns a PyTorch module; for '
                f'other models call fedal.load_run(path, models={{"{client}": learner}}).'
            )
        learner = cast("Learner", custom)
        learner.load_state_dict({**learner.state_dict(), "model": load_file(weights)})
        return learner

    def _weights(self, client: str) -> Path:
        if self.folder.is_server:
            raise FedalError(f"{self.path} is a server's folder: it holds no models, because each site keeps its own.")
        if client not in self.client_models:
            raise FedalError(f'{self.path} has no client "{client}". It has: {", ".join(self.client_models)}.')
        weights = self.folder.models / f"{client}.safetensors"
        if not weights.exists():
            if self.is_complete:
                raise FedalError(
                    f"{weights} is missing: with so many clients, only the models of those that are evaluated are "
                    "saved. Set eval_clients to save more."
                )
            raise FedalError(f"{weights} is missing: the run is not complete. {self._advice}")
        return weights

    def _filled(self, model: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
        from fedal.learners.module_state import load_whole_state

        if self.config.precision == "fp64":
            model = model.double()  # before loading, or the weights would be rounded
        try:
            load_whole_state(model, weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise FedalError(
                f"{self.path}: the saved weights do not fit {type(model).__name__} ({reason}). Another version of the "
                "model was used for this run; `environment.json` names the version of fedal."
            ) from None
        return model.eval()


def load_run(path: Path | str, *, trust: bool = False, models: Mapping[str, object] | None = None) -> Run:
    """Opens a run folder for reading; `models` are modules of the kind passed to `run` in Python."""
    return Run(path, trust=trust, models=models)
