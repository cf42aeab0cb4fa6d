"""The results of docs/tutorials: one small file per comparison, from the runs that the commands of a tutorial make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedal.durable import write_atomically
from fedal.errors import ConfigError
from fedal.records.run import Run
from studies.result_files import ENVIRONMENT
from studies.results_plan import ROOT

FOLDER = ROOT / "docs" / "tutorials"
BEFORE, AFTER = "local", "fedal"
DATA = ("test", "own_test")
CALIBRATION = "calibration_error"
DIGITS = 9  # decimals in the files: tables of the page and of `fedal run` must round alike

BySeed = dict[int, float]
Point = tuple[float, float, int]  # of a reliability diagram: predicted, observed, samples


@dataclass(frozen=True)
class Tutorial:
    """One comparison of a tutorial: the page, the folder in its project, the headline and what else its table shows."""

    name: str
    page: str
    runs: str
    title: str
    metrics: tuple[str, ...]

    @property
    def file(self) -> Path:
        return FOLDER / "data" / f"{self.name}.json"

    def folder(self, executed: Path) -> Path:
        """Where the commands of the page leave the comparison (`python -m tests.readme_outputs PAGE --keep DIR`)."""
        return executed / self.page / self.page / "runs" / self.runs


TUTORIALS = (
    Tutorial("bank", "bank", "first", "Three banks", ("pr_auc", "balanced_accuracy")),
    Tutorial("bank-boosters", "bank", "boosters", "Three banks, two with boosters", ("pr_auc", "balanced_accuracy")),
    Tutorial("hospital", "hospital", "first", "Three hospitals", ("brier", CALIBRATION, "roc_auc")),
    Tutorial("images", "images", "first", "Three sites with images", ("accuracy", "log_loss")),
)


class Results:
    """What a result file holds."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._runs: list[dict[str, Any]] = content["runs"]
        self.environment: dict[str, str] = content["environment"]
        self.iterations = int(content["config"]["iterations"])

    @property
    def sites(self) -> dict[str, str]:
        """site -> its model"""
        return {name: site["model"] for name, site in self._runs[0]["sites"].items()}

    @property
    def seeds(self) -> list[int]:
        return sorted({int(run["seed"]) for run in self._runs})

    def values(self, method: str, site: str, data: str, metric: str) -> BySeed:
        """seed -> the metric of the final model"""
        return {run["seed"]: run["sites"][site][data][metric] for run in self._runs if run["method"] == method}

    def reliability(self, method: str, site: str) -> list[Point]:
        """The reliability diagram on the pooled test data, all seeds together, in ten equal bins."""
        bins: dict[int, list[Point]] = {}
        for run in self._runs:
            if run["method"] == method:
                for predicted, observed, samples in run["sites"][site]["reliability"]:
                    bins.setdefault(min(9, int(10 * predicted)), []).append((predicted, observed, samples))
        return [_joined(points) for _, points in sorted(bins.items())]


def _joined(points: list[Point]) -> Point:
    total = sum(samples for *_, samples in points)
    predicted, observed = (sum(point[k] * point[2] for point in points) / total for k in (0, 1))
    return predicted, observed, total


def read(tutorial: Tutorial) -> Results:
    return Results(json.loads(tutorial.file.read_bytes()))


def collect(executed: Path) -> None:
    """Writes the result files of the comparisons that are found in the folder of executed pages."""
    found = [tutorial for tutorial in TUTORIALS if tutorial.folder(executed).is_dir()]
    if not found:
        raise ConfigError(f"{executed}: no tutorial was executed here; see `python -m tests.readme_outputs --help`.")
    for tutorial in found:
        runs = [
            Run(path.parent, trust=True)  # made here, by the commands of our own page
            for method in (BEFORE, AFTER)
            for path in sorted(tutorial.folder(executed).glob(f"{method}/seed-*/summary.json"))
        ]
        tutorial.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(tutorial.file, _as_text(runs).encode())


def _as_text(runs: list[Run]) -> str:
    """JSON with one line per run."""
    last = runs[-1]
    about = last.folder.read_environment()
    parts = {
        "config": json.dumps(last.config.model_dump(exclude_none=True, mode="json")),
        "environment": json.dumps({key: about[key] for key in ENVIRONMENT if key in about}),
        "runs": "[\n  " + ",\n  ".join(json.dumps(_extracted(run)) for run in runs) + "\n ]",
    }
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n"


def _extracted(run: Run) -> dict[str, Any]:
    sites: dict[str, dict[str, Any]] = {}
    for client, scores in run.scores["clients"].items():
        sites[client] = {"model": run.client_models[client]}
        for data in DATA:
            sites[client][data] = {name: round(value, DIGITS) for name, value in scores[data]["values"].items()}
        if CALIBRATION in scores["test"]["values"]:
            points = scores["test"]["reliability"]
            sites[client]["reliability"] = [
                [round(p["predicted"], DIGITS), round(p["observed"], DIGITS), p["samples"]] for p in points
            ]
    return {"method": run.config.method, "seed": run.config.seed, "sites": sites}
