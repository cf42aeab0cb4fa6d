"""What a trained model is: kind, inputs, classes, schema, metrics and how it was trained, in a JSON file next to it.

The weights stay in a file of their own, so that equal weights are equal bytes. A run describes all its models in
`models/models.json`; a deployed site writes `NAME.json` next to `NAME.safetensors`.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedal.config import Config
from fedal.config.revealed import revealed
from fedal.data.dataset import Dataset
from fedal.data.schema import Schema
from fedal.durable import write_atomically
from fedal.errors import CheckpointError, ConfigError
from fedal.messages import in_words

FORMAT: Literal["fedal-models-1"] = "fedal-models-1"
TOGETHER = "models.json"  # describes all models of a folder
MAX_BYTES = 1 << 26


class Training(BaseModel):
    """How the models were trained."""

    model_config = ConfigDict(frozen=True)

    method: str
    dataset: str
    seed: int
    clients: int | None  # None: a site does not know
    iterations: int
    reveals: str  # what a client sends, in words
    received: str = ""  # what a client receives, in words
    messages: tuple[str, ...]  # that clients upload


class TrainedModel(BaseModel):
    """One model. `metrics` and `before` are columns of its final row and of the row before the first step."""

    model_config = ConfigDict(frozen=True)

    model: str  # a name of `fedal models`, package.module:factory, or <Class> for an object passed in Python
    private_samples: int
    lacking: tuple[str, ...] = ()  # columns of the schema that its owner does not have: imputed in all its inputs
    metrics: dict[str, float] = Field(default_factory=dict)
    before: dict[str, float] = Field(default_factory=dict)
    up_bytes: int | None = None


class ModelFile(BaseModel):
    """The content of such a file."""

    model_config = ConfigDict(frozen=True)

    format: Literal["fedal-models-1"] = FORMAT
    fedal: str = Field(default_factory=lambda: version("fedal"))
    load: str = 'fedal.load_model("NAME.safetensors"), or: fedal predict NAME.safetensors FILE'
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    positive: str | None = None
    precision: str = "fp32"
    data_schema: Schema | None = None
    training: Training
    models: dict[str, TrainedModel]

    @classmethod
    def of(
        cls, config: Config, data: Dataset, models: dict[str, TrainedModel], iterations: int, clients: int | None = None
    ) -> Self:
        method = config.method_object()
        classes = tuple(data.class_names or map(str, range(data.n_classes)))
        training = Training(
            method=config.method, dataset=data.name, seed=config.seed, clients=clients,
            iterations=iterations, reveals=revealed(method.sends, config.partition),
            received=in_words(method.receives), messages=tuple(kind.__name__ for kind in method.up),
        )  # fmt: skip
        known = {name: model.model_copy(update={"lacking": data.lacking_of(name)}) for name, model in models.items()}
        return cls(
            input_shape=data.sample_shape, classes=classes,
            positive=None if data.positive is None else classes[data.positive],
            precision=config.precision, data_schema=data.schema, training=training, models=known,
        )  # fmt: skip

    def write(self, path: Path, mode: int | None = None) -> None:
        write_atomically(path, self.model_dump_json(indent=1).encode() + b"\n", mode)


def trained_models(rows: list[dict[str, Any]], names: dict[str, str]) -> dict[str, TrainedModel]:
    """client -> its model, from the rows of clients.jsonl and the names of the models."""
    first = {row["client"]: row for row in rows if row["iteration"] == 0 and row["phase"] == "after_global"}
    return {
        row["client"]: TrainedModel(
            model=names[row["client"]],
            private_samples=row["private_samples"],
            metrics=_measured(row),
            before=_measured(first.get(row["client"], {})),
            up_bytes=row["up_bytes"],
        )
        for row in rows
        if row["final"]
    }


def _measured(row: dict[str, Any]) -> dict[str, float]:
    """The columns of a row that are metrics, such as `test_accuracy` and `own_validation_pr_auc`."""
    kinds = ("test_", "own_test_", "validation_", "own_validation_")
    return {name: row[name] for name in row if name.startswith(kinds) and not name.endswith("_samples")}


def read_model_file(weights: Path) -> tuple[ModelFile, str]:
    """The description of a file of weights, and the name of its model in it; raises ConfigError or CheckpointError."""
    if not weights.is_file():
        raise ConfigError(f"{weights}: no such file. Expected trained weights, such as RUN/models/CLIENT.safetensors.")
    alone, together = weights.with_suffix(".json"), weights.parent / TOGETHER
    path = alone if alone.exists() else together
    if not path.exists():
        raise ConfigError(
            f"{weights}: neither {alone.name} nor {TOGETHER} is next to it, so its kind of model is not known. "
            "Copy that file along with the weights."
        )
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES:,} bytes")
        found = ModelFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError) as error:
        raise CheckpointError(f"{path}: cannot be read ({str(error).splitlines()[0]}).") from None
    name = weights.stem if path == together else next(iter(found.models), "")
    if name not in found.models:
        raise ConfigError(f'{path} does not describe a model "{name}". It has: {", ".join(found.models)}.')
    return found, name


def as_metadata(found: ModelFile, name: str) -> dict[str, str]:
    """The description of one model as texts, for formats with room for them."""
    kept = found.model_copy(update={"models": {name: found.models[name]}})
    return {"fedal": kept.model_dump_json(), "classes": json.dumps(found.classes)}
