"""Small result files of finished runs: all that the page needs, without the run folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedal.analysis.restored import restored
from fedal.campaigns.job import refuse_other_runs
from fedal.durable import write_atomically
from fedal.records.folder import RunFolder
from fedal.records.run import Run
from fedal.records.statistics import Row, round_ends
from fedal.theory.equilibrium import check_equilibrium
from fedal.theory.outputs import client_outputs
from studies.results_plan import Arm, MeasuredOn, ResultsPlan, Study, result_path

CURVE_POINTS = 36
KEYS = (
    "iteration",
    "test_accuracy",
    "test_accuracy_min",
    "validation_accuracy",
    "honest_test_accuracy",
    "disagreement",
    "discriminator_accuracy",
    "adversarial_grad_norm",
    "discriminator_lr",
)
"""The columns of a curve, at the end of a round. `after_local` is added where it was recorded."""
ENVIRONMENT = ("fedal", "torch", "numpy", "python", "machine", "cpu_capability", "data")
DIGITS = 6  # decimals in result files: far below any spread
MANY = 50  # clients: beyond that, comparing the outputs of all of them takes hours


@dataclass(frozen=True)
class Result:
    """One finished run: its final row and its thinned curve."""

    content: dict[str, Any]

    @property
    def final(self) -> dict[str, Any]:
        return dict(self.content["final"])

    @cached_property
    def curve(self) -> dict[str, list[float]]:
        return dict(self.content["curve"])

    @property
    def rows(self) -> list[Row]:
        """The points of the curve, as rows."""
        return [dict(zip(self.curve, values, strict=True)) for values in zip(*self.curve.values(), strict=True)]

    @property
    def fresh(self) -> float | None:
        """The share of outputs whose owner a discriminator trained from scratch names; None with many clients."""
        return self.content["agreement"].get("fresh")  # type: ignore[no-any-return]

    def ensemble(self, data: MeasuredOn) -> float | None:
        """Accuracy of the ensemble, the mean of all clients' logits, on the test or validation samples."""
        recorded = self.final.get(f"{data}_ensemble_accuracy")  # by the instrument `bottlenecks`
        return self.content["agreement"].get("team_on_test") if recorded is None else float(recorded)


def collect(plan: ResultsPlan, runs: Path, folder: Path) -> list[Path]:
    """Writes data/STUDY/ARM/seed-S.json for every finished run; leaves the files of other runs alone."""
    written = []
    for study in plan.studies:
        for job in study.jobs(runs):
            path = result_path(folder, study, job.name, job.seed)
            if _is_news(RunFolder(job.folder).summary, path):
                refuse_other_runs([job])
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, _as_text(extract(Run(job.folder))).encode())
                written.append(path)
    return written


def _is_news(summary: Path, path: Path) -> bool:
    """Whether a run ended after its result file was written, or has none."""
    return summary.exists() and not (path.exists() and path.stat().st_mtime > summary.stat().st_mtime)


def read_results(folder: Path, study: Study, arm: Arm) -> dict[int, Result]:
    """The finished runs of an arm: seed -> result."""
    paths = {seed: result_path(folder, study, arm.name, seed) for seed in study.seeds}
    return {seed: Result(json.loads(path.read_bytes())) for seed, path in paths.items() if path.exists()}


def extract(run: Run) -> dict[str, Any]:
    """Final row, thinned curve, settings and environment of a run, and how far apart its final models are."""
    environment = run.folder.read_environment()
    return {
        "config": run.config.model_dump(exclude_none=True, mode="json"),
        "environment": {key: environment[key] for key in ENVIRONMENT if key in environment},
        "final": _rounded(run.final),
        "curve": thinned_curve(run.metrics),
        "agreement": _rounded(_agreement(run)),
    }


def _agreement(run: Run) -> dict[str, Any]:
    """How similar the outputs of the final models are, as in `fedal analyse`, and the accuracy of their ensemble.

    Empty for a run with many clients.
    """
    if len(run.config.client_names) > MANY:
        return {}
    with restored(run) as found:
        view, learners = found.view, found.view.learners.values()
        on_public, on_test = (
            client_outputs(learners, view.public),
            client_outputs(learners, torch.as_tensor(view.split.dataset.test_x)),
        )
        measured = asdict(check_equilibrium(on_public, view.discriminator, view.clients, run.config.seed))
        measured["team_on_test"] = _accuracy(on_test.mean(0), torch.as_tensor(view.split.dataset.test_y))
        if view.public_labels is not None:
            measured["team_on_public"] = _accuracy(on_public.mean(0), view.public_labels)
        return measured


def _accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return float((logits.argmax(-1) == labels).double().mean())


def thinned_curve(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns of at most CURVE_POINTS evenly spaced evaluations while training, including the last one.

    Iteration 0 is left out: it has neither messages nor local training, so most columns have no value there.
    """
    ends = [row for row in round_ends(rows, final=False) if row["iteration"] > 0]
    step = -(-len(ends) // CURVE_POINTS) or 1
    chosen = ends[::-1][::step][::-1]
    columns = {key: [_rounded(row)[key] for row in chosen] for key in KEYS if all(key in row for row in chosen)}
    between = {row["round"]: row["test_accuracy"] for row in rows if row["phase"] == "after_local"}
    if chosen and all(row["round"] in between for row in chosen):
        columns["after_local"] = [round(between[row["round"]], DIGITS) for row in chosen]
    return columns


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, DIGITS) if isinstance(value, float) else value for key, value in row.items()}


def _as_text(content: dict[str, Any]) -> str:
    """JSON with one line per key of each part: small, and readable in a diff."""
    parts = []
    for name, part in content.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
        parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
