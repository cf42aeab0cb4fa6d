"""The attack study runs each federation once, keeps a row of every run, and its page shows these rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from studies.attacks import FOLDER, AttackPlan, Cell, Grid, Outcome, read_attack_plan, read_outcomes
from studies.attacks_page import (
    BEGIN_SUMMARY,
    END_SUMMARY,
    SECURITY_PAGE,
    Table,
    attacks_page,
    attacks_summary,
)
from studies.results_page import BEGIN, END
from studies.run import run_plan, unfinished

PLAN = """
[defences]
mean = {}
multi-krum = { aggregate = "multi-krum", space = "probabilities" }

[grids.choice]
datasets = ["digits"]
clients = [5]
methods = ["fedmd"]
defences = ["mean"]
attacks = ["none", "lma:20"]
seeds = { digits = [3] }
settings = { validation = 0.1 }

[grids.attacks]
datasets = ["digits"]
clients = [5]
methods = ["fedmd"]
defences = ["mean", "multi-krum"]
attacks = ["none", "absent", "lma:20"]
seeds = { digits = [0] }

[grids.bound]
datasets = ["digits"]
clients = [5]
methods = ["fedmd"]
defences = ["multi-krum"]
attacks = ["absent", "lma:1", "lma:20"]
seeds = { digits = [0] }

[grids.cost]
datasets = ["digits"]
clients = [5]
methods = ["fedmd"]
defences = ["mean", "multi-krum"]
attacks = ["none"]
seeds = { digits = [0] }
"""
TINY = """
dataset = "digits"
models = "mlp-small"
batch_size = 8
iterations = 4
tau = 2
eval_every = 4
"""


def outcome(attack: str, accuracy: float, seed: int = 0, defence: str = "multi-krum") -> Outcome:
    return Outcome("digits", 5, "fedmd", defence, attack, seed, accuracy, 0.1, None, "0", "0")


def test_every_planned_run_has_a_valid_config_and_shared_ones_are_made_once() -> None:
    plan = read_attack_plan()
    runs = {run for grid in plan.grids.values() for run in grid.runs}
    known = {(each.cell, each.seed) for each in read_outcomes(FOLDER)}
    assert len(plan.jobs(Path("runs"))) == len(runs - known)
    assert sum(len(grid.runs) for grid in plan.grids.values()) > len(runs) > 1000
    others = {seed for name, grid in plan.grids.items() if name != "choice" for _, seed in grid.runs}
    assert others.isdisjoint(seed for _, seed in plan.grids["choice"].runs)


def test_the_page_shows_what_runs_csv_says() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == attacks_page(read_attack_plan(), read_outcomes(FOLDER))
    assert all((FOLDER / figure).exists() for figure in re.findall(r"\]\((figures/[^)]+)\)", page))
    advice = SECURITY_PAGE.read_text(encoding="utf-8").split(BEGIN_SUMMARY)[1].split(END_SUMMARY)[0]
    assert advice.strip() == attacks_summary(read_attack_plan(), read_outcomes(FOLDER))


def test_the_recommended_aggregate_keeps_its_promise() -> None:
    """At most 3 points lost to any attack outside the honest hull, at most 1 point without an attacker."""
    rows = [line.split("|")[2:-1] for line in attacks_summary(read_attack_plan(), read_outcomes(FOLDER)).splitlines()]
    attacked, _, paper, alone = ([float(value) for value in row] for row in rows[2:])
    assert min(attacked) >= -3 and min(alone) >= -1 and max(paper) < -50


def test_the_summary_has_the_worst_of_each_method() -> None:
    plan = AttackPlan(
        FOLDER,
        {},
        {
            "bound": Grid(
                tuple(Cell("digits", 5, "fedmd", "multi-krum", each) for each in ("absent", "hips", "lma:1", "lma:20")),
                {"digits": (0,)},
                {},
            ),
            "attacks": Grid(
                tuple(Cell("digits", 5, "fedmd", "mean", each) for each in ("none", "absent", "lma:20")),
                {"digits": (0,)},
                {},
            ),
            "cost": Grid(
                tuple(Cell("digits", 5, "fedmd", each, "none") for each in ("mean", "multi-krum")), {"digits": (0,)}, {}
            ),
        },
    )
    found = {"absent": 0.9, "hips": 0.7, "lma:1": 0.88, "lma:20": 0.89, "none": 0.91}
    outcomes = [outcome(attack, accuracy) for attack, accuracy in found.items()]
    outcomes += [outcome(a, v, defence="mean") for a, v in {"absent": 0.9, "lma:20": 0.4, "none": 0.92}.items()]
    lines = attacks_summary(plan, outcomes).splitlines()[2:]
    assert [line.split("|")[2].strip() for line in lines] == ["-2.0", "-20.0", "-50.0", "-1.0"]


def test_differences_are_paired_by_seed() -> None:
    table = Table([outcome("lma:1", 0.8), outcome("lma:1", 0.2, seed=1), outcome("absent", 0.9)])
    attacked, absent = (Cell("digits", 5, "fedmd", "multi-krum", attack) for attack in ("lma:1", "absent"))
    assert table.gain(attacked, absent, Grid((), {"digits": (0, 1)}, {})) == pytest.approx(-0.1)
    assert table.gain(attacked, absent, Grid((), {"digits": (1,)}, {})) is None


@pytest.mark.processes
def test_a_tiny_study_from_its_runs_to_its_page(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "configs/digits.toml").write_text(TINY)
    plan = read_attack_plan(tmp_path)
    jobs = plan.jobs(tmp_path / "runs")
    assert len(jobs) == 2 + 6 + 1
    assert run_plan(unfinished(jobs), 2) == []
    rows = plan.collect(tmp_path / "runs")
    assert len(rows) == 9 and rows == read_outcomes(tmp_path) and plan.jobs(tmp_path / "runs") == []
    assert [row.validation is not None for row in rows] == [row.seed == 3 for row in rows]
    page = attacks_page(plan, rows)
    assert "| attacks | 6 | 6 |" in page and re.search(r"\| `lma` \| [+-]\d+\.\d \(at (1|20)\) \|", page)
