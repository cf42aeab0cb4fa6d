"""`python -m studies attacks`: runs docs/results/attacks/plan.toml and keeps one row per run in runs.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedal.campaigns.job import Job
from fedal.config import load_config, read_toml
from fedal.durable import write_atomically
from fedal.records.run import Run
from fedal.records.tables import as_csv
from studies.results_plan import PAGE_FOLDER

FOLDER = PAGE_FOLDER / "attacks"
SHARE = 0.2  # of the clients attack
NONE, ABSENT = "none", "absent"


@dataclass(frozen=True, order=True)
class Cell:
    """One federation of the study; the seed makes it a run."""

    dataset: str
    clients: int
    method: str
    defence: str
    attack: str  # "none", or name:strength


@dataclass(frozen=True)
class Grid:
    """All combinations of some values, with the seeds of each dataset."""

    cells: tuple[Cell, ...]
    seeds: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, Any]

    @property
    def runs(self) -> list[tuple[Cell, int]]:
        """All cells of one seed before the next seed, one dataset after the other."""
        return [
            (c, seed) for name, seeds in self.seeds.items() for seed in seeds for c in self.cells if c.dataset == name
        ]


@dataclass(frozen=True)
class Outcome:
    """What runs.csv keeps of a run. Accuracies are means and minima over the honest clients."""

    dataset: str
    clients: int
    method: str
    defence: str
    attack: str
    seed: int
    accuracy: float
    worst: float
    validation: float | None
    fedal: str
    torch: str

    @property
    def cell(self) -> Cell:
        return Cell(self.dataset, self.clients, self.method, self.defence, self.attack)


@dataclass(frozen=True)
class AttackPlan:
    """The content of plan.toml."""

    folder: Path
    defences: Mapping[str, Mapping[str, Any]]
    grids: Mapping[str, Grid]

    def jobs(self, runs: Path) -> list[Job]:
        """What runs.csv does not have yet, each run once: dataset by dataset, and there grid by grid."""
        known = {(each.cell, each.seed) for each in read_outcomes(self.folder)}
        found: dict[Path, Job] = {}
        for dataset in dict.fromkeys(cell.dataset for grid in self.grids.values() for cell in grid.cells):
            for grid in self.grids.values():
                for cell, seed in grid.runs:
                    if cell.dataset == dataset and (cell, seed) not in known:
                        job = self.job(runs, grid, cell, seed)
                        found.setdefault(job.folder, job)
        return list(found.values())

    def job(self, runs: Path, grid: Grid, cell: Cell, seed: int) -> Job:
        settings = {
            **grid.settings,
            **self.defences[cell.defence],
            "method": cell.method,
            "clients": cell.clients,
            "seed": seed,
            "workers": 1,  # one core per run
        }
        if cell.attack != NONE:
            settings["attackers"] = f"{SHARE}:{cell.attack}"
        config = load_config(self.folder / "configs" / f"{cell.dataset}.toml", settings)
        name = "/".join((cell.dataset, str(cell.clients), cell.method, cell.defence, cell.attack.replace(":", "-")))
        return Job(name, seed, config, runs / name / f"seed-{seed}")

    def collect(self, runs: Path) -> list[Outcome]:
        """Adds the finished runs to runs.csv, in place of older ones of the same cell and seed."""
        outcomes = {(each.cell, each.seed): each for each in read_outcomes(self.folder)}
        for grid in self.grids.values():
            for cell, seed in grid.runs:
                job = self.job(runs, grid, cell, seed)
                if job.is_finished:
                    outcomes[cell, seed] = outcome_of(cell, seed, Run(job.folder))
        rows = [outcomes[key] for key in sorted(outcomes)]
        names = [field.name for field in fields(Outcome)]
        text = as_csv(names, [list(asdict(row).values()) for row in rows])
        write_atomically(self.folder / "runs.csv", text.replace("\r\n", "\n").encode())
        return rows


def read_attack_plan(folder: Path = FOLDER) -> AttackPlan:
    content = read_toml(folder / "plan.toml")
    grids = {
        name: Grid(
            tuple(_cells(grid)), {key: tuple(seeds) for key, seeds in grid["seeds"].items()}, grid.get("settings", {})
        )
        for name, grid in content["grids"].items()
    }
    return AttackPlan(folder, content["defences"], grids)


def _cells(grid: Mapping[str, Any]) -> Iterator[Cell]:
    for dataset, clients, method, attack, defence in product(
        grid["datasets"], grid["clients"], grid["methods"], grid["attacks"], grid["defences"]
    ):
        yield Cell(dataset, clients, method, defence, attack)


def outcome_of(cell: Cell, seed: int, run: Run) -> Outcome:
    attackers = run.config.attacker_table
    rows = [row for row in run.client_metrics if row["final"] and row["client"] not in attackers]
    tested = [row["test_accuracy"] for row in rows]
    held_out = [row["validation_accuracy"] for row in rows if "validation_accuracy" in row]
    environment = run.folder.read_environment()
    return Outcome(
        **asdict(cell),
        seed=seed,
        accuracy=round(float(np.mean(tested)), 5),
        worst=round(min(tested), 5),
        validation=round(float(np.mean(held_out)), 5) if held_out else None,
        fedal=environment["fedal"],
        torch=environment["torch"],
    )


def read_outcomes(folder: Path) -> list[Outcome]:
    """The rows of runs.csv; none without the file."""
    path = folder / "runs.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Outcome(
                **{key: row[key] for key in ("dataset", "method", "defence", "attack", "fedal", "torch")},
                clients=int(row["clients"]),
                seed=int(row["seed"]),
                accuracy=float(row["accuracy"]),
                worst=float(row["worst"]),
                validation=float(row["validation"]) if row["validation"] else None,
            )
            for row in csv.DictReader(file)
        ]
