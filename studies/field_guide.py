"""`python -m studies field-guide`: every method under one protocol, and the choice of defaults.

Runs docs/results/field-guide/plan.toml one run at a time and keeps one row per run in data/NAME.csv.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import fedal
from fedal import methods
from fedal.config import Config, load_config, read_toml
from fedal.durable import write_atomically
from fedal.errors import ConfigError
from fedal.records.run import Run
from fedal.records.statistics import mean
from fedal.records.tables import as_csv
from studies.results_plan import PAGE_FOLDER

FOLDER = PAGE_FOLDER / "field-guide"
CHOICES = "choices"  # the config that all choices share


@dataclass(frozen=True, order=True)
class Cell:
    """A method with options other than its defaults, as JSON, and a seed."""

    method: str
    options: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What data/NAME.csv keeps of a run. Bytes are per client; steps are optimizer steps of a client.

    `accuracy` and `worst` are on test data, and NaN in the runs of a choice.
    """

    method: str
    options: str
    seed: int
    accuracy: float
    worst: float
    validation: float | None
    up_bytes: float
    down_bytes: float
    steps: int
    processor_seconds: float  # with one worker; compares rows of one file
    stacked: bool  # whether small networks of one architecture were trained as one
    fedal: str
    torch: str

    @property
    def cell(self) -> Cell:
        return Cell(self.method, self.options, self.seed)


@dataclass(frozen=True)
class GuideStudy:
    """All methods with one config; the best ones with more seeds."""

    name: str
    title: str
    seeds: tuple[int, ...]
    best: int = 0
    best_seeds: tuple[int, ...] = ()

    @property
    def config_name(self) -> str:
        return self.name

    def cells(self, outcomes: Sequence[Outcome]) -> list[Cell]:
        """All methods at the first seed before the next one; then the best ones, once all methods have run."""
        first = [Cell(name, "{}", seed) for seed in self.seeds for name in methods.MODULES]
        if not {*first} <= {each.cell for each in outcomes}:
            return first
        return first + [Cell(name, "{}", seed) for seed in self.best_seeds for name in self.best_of(outcomes)]

    def best_of(self, outcomes: Sequence[Outcome]) -> list[str]:
        """The best methods by mean validation accuracy over the seeds that all methods have."""
        found = {name: self._validation(name, outcomes) for name in methods.MODULES} if self.best else {}
        return sorted(found, key=lambda name: -found[name])[: self.best]

    def _validation(self, method: str, outcomes: Sequence[Outcome]) -> float:
        mine = [each for each in outcomes if each.method == method and each.seed in self.seeds]
        return mean(each.validation for each in mine if each.validation is not None)


@dataclass(frozen=True)
class Choice:
    """A grid of options of one method, judged on validation data."""

    name: str
    seeds: tuple[int, ...]
    grid: Mapping[str, Sequence[Any]]

    @property
    def config_name(self) -> str:
        return CHOICES

    def cells(self, outcomes: Sequence[Outcome]) -> list[Cell]:
        combined = [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        return [Cell(self.name, json.dumps(options), seed) for seed in self.seeds for options in combined]


@dataclass(frozen=True)
class FieldGuide:
    """The content of plan.toml."""

    folder: Path
    studies: Mapping[str, GuideStudy]
    choices: Mapping[str, Choice]

    def named(self, name: str) -> GuideStudy | Choice:
        known: dict[str, GuideStudy | Choice] = {**self.choices, **self.studies}
        if name not in known:
            raise ConfigError(f"{self.folder / 'plan.toml'} has no study {name!r}. It has: {', '.join(known)}.")
        return known[name]

    def config(self, part: GuideStudy | Choice, cell: Cell) -> Config:
        settings = {"method": cell.method, "seed": cell.seed, "workers": 1, **json.loads(cell.options)}
        return load_config(self.folder / "configs" / f"{part.config_name}.toml", settings)

    def missing(self, name: str) -> list[Cell]:
        outcomes = read_outcomes(self.folder, name)
        known = {each.cell for each in outcomes}
        return [cell for cell in self.named(name).cells(outcomes) if cell not in known]

    def run(self, name: str) -> Iterator[Outcome]:
        """Runs what is missing of a study; each row is on disk before the next run starts."""
        while cells := self.missing(name):  # the best methods are known when all have run
            for cell in cells:
                outcome = run_cell(cell, self.config(self.named(name), cell))
                if name in self.choices:  # what is not recorded cannot decide
                    outcome = replace(outcome, accuracy=math.nan, worst=math.nan)
                write_outcomes(self.folder, name, [*read_outcomes(self.folder, name), outcome])
                yield outcome


def read_field_guide(folder: Path = FOLDER) -> FieldGuide:
    content = read_toml(folder / "plan.toml")
    return FieldGuide(
        folder,
        {
            name: GuideStudy(
                name, each["title"], tuple(each["seeds"]), each.get("best", 0), tuple(each.get("best_seeds", ()))
            )
            for name, each in content["studies"].items()
        },
        {name: Choice(name, tuple(each["seeds"]), each["grid"]) for name, each in content["choices"].items()},
    )


def run_cell(cell: Cell, config: Config) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="field-guide-") as folder:
        began = time.process_time()
        run = fedal.run(config, Path(folder) / "run")
        return outcome_of(cell, run, time.process_time() - began)


def outcome_of(cell: Cell, run: Run, processor_seconds: float) -> Outcome:
    final, environment, n_clients = run.final, run.folder.read_environment(), len(run.config.client_names)
    validation = final.get("validation_accuracy")
    return Outcome(
        **asdict(cell),
        accuracy=round(final["test_accuracy"], 5),
        worst=round(final["test_accuracy_min"], 5),
        validation=None if validation is None else round(validation, 5),
        up_bytes=round(final["up_bytes"] / n_clients, 1),
        down_bytes=round(final["down_bytes"] / n_clients, 1),
        steps=run.config.method_object().steps(run.config.options, run.config.total_rounds),
        processor_seconds=round(processor_seconds, 2),
        stacked=run.config.stacked is not False,
        fedal=environment["fedal"],
        torch=environment["torch"],
    )


def read_outcomes(folder: Path, name: str) -> list[Outcome]:
    """The rows of data/NAME.csv; none without the file."""
    path = folder / "data" / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Outcome(
                method=row["method"],
                options=row["options"],
                accuracy=float(row["accuracy"]),
                worst=float(row["worst"]),
                up_bytes=float(row["up_bytes"]),
                down_bytes=float(row["down_bytes"]),
                fedal=row["fedal"],
                torch=row["torch"],
                seed=int(row["seed"]),
                validation=float(row["validation"]) if row["validation"] else None,
                steps=int(row["steps"]),
                processor_seconds=float(row["processor_seconds"]),
                stacked=row["stacked"] == "True",
            )
            for row in csv.DictReader(file)
        ]


def write_outcomes(folder: Path, name: str, outcomes: Sequence[Outcome]) -> None:
    rows = sorted(outcomes, key=lambda each: each.cell)
    text = as_csv([field.name for field in fields(Outcome)], [list(asdict(row).values()) for row in rows])
    path = folder / "data" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.replace("\r\n", "\n").encode())
