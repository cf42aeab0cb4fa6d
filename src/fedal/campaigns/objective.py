"""What a trial is scored by: a metric of its final models, on data that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedal.data.dataset import Dataset
from fedal.errors import ConfigError
from fedal.records.run import Run
from fedal.records.statistics import mean
from fedal.seeding import Indices

Objective = Literal["validation", "own_validation", "train", "test"]
OBJECTIVES: dict[Objective, str] = {
    "validation": "samples of all classes that belong to no client",
    "own_validation": "their clients' own held-out samples",
    "train": "their own training data",
    "test": "the test set",
}
"""What a score is measured on."""
HELD_OUT: tuple[Objective, ...] = ("validation", "own_validation")
"""The objectives that need data held out of training; each is also the setting that says how much."""
SHARE = 0.1  # of the samples: held out for such an objective where the settings say nothing


def with_held_out(settings: Mapping[str, Any], objective: Objective) -> dict[str, Any]:
    """The settings of all trials: a share of the samples is held out if the objective needs it and none is given."""
    needed = objective in HELD_OUT and not settings.get(objective)
    return {**settings, objective: SHARE} if needed else dict(settings)


def evaluate(run: Run, objective: Objective, metric: str = "") -> float:
    """The score of a trial. With `test`, the test set chooses the settings, so its accuracy is optimistic."""
    name = metric or run.headline.metric.name
    if objective != "train":
        if (key := f"{objective}_{name}") not in run.final:
            raise ConfigError(f"{run.path} has no {key}: it is not defined for its data. Choose another --metric.")
        return float(run.final[key])
    from fedal.simulate.prepare import restore_split

    split = restore_split(run.config, run.folder.partition)
    data = split.dataset
    each = [_on_training_data(run, client, name, data, indices) for client, indices in split.clients.items()]
    return mean(value for value in each if value is not None)


def _on_training_data(run: Run, client: str, metric: str, data: Dataset, indices: Indices) -> float | None:
    """The metric of a client's model on the client's training data; None where it is not defined."""
    import torch

    from fedal.metrics import EVALUATION_BATCH, Predictions
    from fedal.metrics.scores import compute
    from fedal.precision import dtype_of

    model, inputs = run.model(client), torch.as_tensor(data.train_x[indices], dtype=dtype_of(run.config.precision))
    with torch.no_grad():
        logits = torch.cat([model(part) for part in torch.split(inputs, EVALUATION_BATCH)])
    labels = torch.as_tensor(data.train_y[indices])
    return compute(Predictions.of(logits, labels, data.positive), (metric,)).get(metric)
