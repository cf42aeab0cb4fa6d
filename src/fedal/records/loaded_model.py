"""A trained model, loaded from its file and the description next to it: `fedal.load_model`, `fedal predict`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal.data.custom import load_public_npz
from fedal.data.lacking import without_columns
from fedal.data.reading import read_public
from fedal.errors import CheckpointError, ConfigError
from fedal.lazy import torch
from fedal.learners.module_state import load_whole_state
from fedal.metrics import EVALUATION_BATCH
from fedal.models import LEARNERS, build_any
from fedal.models.logits_of import logits_of
from fedal.precision import dtype_of
from fedal.records.model_files import ModelFile, read_model_file
from fedal.user_code import is_import_path


@dataclass(frozen=True)
class LoadedModel:
    """A trained model: `model.predict(x)` returns probabilities, `model.about` what the model is."""

    about: ModelFile
    name: str
    model: Any  # an nn.Module in evaluation mode, or a learner of another framework

    @property
    def classes(self) -> tuple[str, ...]:
        return self.about.classes

    def logits(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """(n, ...) -> (n, K)"""
        inputs = torch.as_tensor(x, dtype=dtype_of(self.about.precision))
        if tuple(inputs.shape[1:]) != self.about.input_shape:
            raise ConfigError(
                f"samples have shape {tuple(inputs.shape[1:])}; this model takes {self.about.input_shape}."
            )
        parts = torch.split(inputs, EVALUATION_BATCH)
        if not isinstance(self.model, torch.nn.Module):
            return torch.cat([self.model.predict(part) for part in parts]).double().numpy()
        with torch.no_grad():
            return torch.cat([logits_of(self.model(part)) for part in parts]).double().numpy()

    def predict(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities of the classes, in the order of `classes`.  (n, ...) -> (n, K)"""
        return torch.softmax(torch.from_numpy(self.logits(x)), -1).numpy()

    @property
    def lacking(self) -> tuple[str, ...]:
        """Columns that the model has never seen, because its owner does not have them."""
        return self.about.models[self.name].lacking

    def read(self, file: Path | str) -> NDArray[np.float32]:
        """The samples of a file, encoded and imputed as for training; labels in it are ignored."""
        file = Path(file)
        if (schema := self.about.data_schema) is not None:
            return without_columns(read_public(file, schema), schema, self.lacking)
        if file.suffix.lower() != ".npz":
            raise ConfigError(
                f"{file}: the model was trained without a schema, so only .npz files with x fit; it takes samples of "
                f"shape {self.about.input_shape}."
            )
        return load_public_npz(file)


def load_model(path: Path | str, *, trust: bool = False, model: Any = None) -> LoadedModel:
    """The trained model in `path`, such as RUN/models/CLIENT.safetensors.

    `trust` allows importing the user's code that the description names. `model` is an object of the kind that was
    passed in Python, a module or a learner; a module is filled with the weights.
    """
    from safetensors.torch import load_file

    weights = Path(path)
    about, name = read_model_file(weights)
    kind = about.models[name].model
    if model is None:
        if kind.startswith("<"):
            raise ConfigError(f"{weights}: the model was passed in Python as {kind}. Pass one again: model=...")
        if is_import_path(kind) and not trust:
            raise ConfigError(f'{weights} names custom code, "{kind}". If you trust it, pass --trust (trust=True).')
        model = build_any(kind, about.input_shape, len(about.classes))
    try:
        tensors = load_file(weights)
        if isinstance(model, torch.nn.Module):
            model = model.to(dtype_of(about.precision))
            load_whole_state(model, tensors)
            return LoadedModel(about, name, model.eval())
        model.load_state_dict({**model.state_dict(), "model": tensors})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{weights}: cannot be loaded into {kind} ({str(error).splitlines()[-1]}).") from None
    return LoadedModel(about, name, model)


def native_suffix(kind: str) -> str:
    """How files of the model's own library end, for those that have one."""
    return {"xgboost": ".ubj", "lightgbm": ".txt"}.get(kind, "") if kind in LEARNERS else ""
