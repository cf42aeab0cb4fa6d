"""Reads an entry's numbers from its runs: accuracies, gradient variances, mean outputs and class counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedal.campaigns.comparison import MethodRuns, steps_of
from fedal.campaigns.comparison_folder import method_folder
from fedal.campaigns.paper.entries import FIGURE_ONLY, Column, Kind
from fedal.campaigns.paper.outcome import Outcome, TableLine, config_text
from fedal.config import Config
from fedal.durable import make_folder
from fedal.engine.threads import thread_workers
from fedal.metrics import EVALUATION_BATCH
from fedal.precision import dtype_of
from fedal.records.folder import write_json
from fedal.records.run import Run
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import prepare_split, restore_split

SHOWN_CLASS = 3  # of fig:fdal_com
SHOWN_CLIENTS = 10  # of fig:svhn_data

Predict = Callable[[torch.Tensor], torch.Tensor]


def read_lines(
    outcome: Outcome, column: Column, row: MethodRuns, settings: Mapping[str, Any], folder: Path
) -> list[TableLine]:
    """The lines of one method in one column, or the reason why it has no runs."""
    config = config_text(settings, row.method, [run.effective_classes for run in row.runs])
    place = f"{folder.name}/{method_folder(folder, row.method).name}"
    if not row.runs:
        reason = f"not applicable: {row.not_applicable}"
        return [TableLine(column.name, row.method, config, (), column.paper.get(row.method, FIGURE_ONLY), reason)]
    values = READERS.get(outcome.entry.kind, _accuracies)(outcome, column, row)
    return [
        TableLine(
            column.name,
            what,
            config,
            tuple(found),
            column.paper.get(what, FIGURE_ONLY),
            folder=place,
            steps=steps_of(row.runs[0]),
        )
        for what, found in values.items()
    ]


def _accuracies(outcome: Outcome, column: Column, row: MethodRuns) -> dict[str, list[float]]:
    return {row.method: list(row.finals("test_accuracy").values())}


def _variances(outcome: Outcome, column: Column, row: MethodRuns) -> dict[str, list[float]]:
    """loss -> the largest variance of its gradients that each run recorded."""
    return {
        name: [
            max(entry[f"variance_{name}"] for entry in run.metrics if f"variance_{name}" in entry) for run in row.runs
        ]
        for name in column.paper
    }


def _outputs(outcome: Outcome, column: Column, row: MethodRuns) -> dict[str, list[float]]:
    matrices = [output_matrix(run) for run in row.runs]
    outcome.matrices[column.name, row.method] = matrices[0]
    return {row.method: [float(matrix[:, SHOWN_CLASS].mean()) for matrix in matrices]}


READERS: dict[Kind, Callable[[Outcome, Column, MethodRuns], dict[str, list[float]]]] = {
    "variances": _variances,
    "outputs": _outputs,
}


def output_matrix(run: Run) -> NDArray[np.float64]:
    """Mean probabilities of every client's final model on the test samples of SHOWN_CLASS.  -> (N, K)

    Also writes analysis/output-matrix.json for `fedal report`, with the values before and after training.
    """
    config = run.config
    split = restore_split(config, run.folder.partition)
    data = split.dataset
    x = torch.as_tensor(data.test_x[data.test_y == SHOWN_CLASS]).to(config.device, dtype_of(config.precision))
    with thread_workers(config.workers) as workers:
        fresh = assemble(config, split, workers).learners
    before = [_mean_probabilities(learner.predict, x) for learner in fresh.values()]
    after = [_mean_probabilities(run.model(client), x) for client in config.client_names]
    make_folder(run.path / "analysis")
    write_json(run.path / "analysis" / "output-matrix.json", {"before": before, "after": after})
    return np.array(after)


@torch.no_grad()
def _mean_probabilities(predict: Predict, x: torch.Tensor) -> list[float]:
    parts = [torch.softmax(predict(part).double(), -1).sum(0) for part in torch.split(x, EVALUATION_BATCH)]
    return [float(p) for p in (torch.stack(parts).sum(0) / len(x)).clamp(0, 1)]


def partition_line(outcome: Outcome, column: Column, settings: Mapping[str, Any], seeds: int) -> TableLine:
    """The line of a partition: splits the data for each seed; the figure shows the split of the first seed."""
    effective = []
    for seed in range(seeds):
        split = prepare_split(Config(**{**settings, "method": "local", "seed": seed}))
        outcome.counts.setdefault(column.name, split.class_counts()[:SHOWN_CLIENTS])
        effective.append(split.effective_classes)
    config = config_text(settings, effective=effective)
    return TableLine(column.name, str(settings["partition"]), config, tuple(effective))
