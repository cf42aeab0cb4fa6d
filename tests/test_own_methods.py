"""The tables on the pages of our own methods show what the result files hold."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BOTTLENECKS = ("accuracy", "bias", "ensemble_accuracy", "gap")
STUDIES = {"digits": "digits", "MNIST": "mnist", "Fashion-MNIST": "fashion-mnist", "SVHN-40k": "svhn-consensus"}
ARMS = {
    "FedLift": "fedlift",
    "without certainty": "balanced-align",
    "without certainty and balanced loss": "align",
    "without certainty and lift: [FedEven](fedeven.md)": "fedeven",
    "without all three: FedMD, `tau = 1`": "fedmd-tau-1",
    "without certainty, lifted fully, s = 1": "balanced-align-strength-1",
    "without certainty and balanced loss, probabilities, power 2": "lift",
    "FedAL as in the paper": "fedal",
}
FEDEVEN_ARMS = {
    "FedEven": "balanced",
    "FedMD, `tau = 1`": "fedmd-tau-1",
    "without the balanced loss: FedMD, `tau = 1`": "fedmd-tau-1",
    "with `tau = 5`": "balanced-tau-5",
    "with less smoothing, 0.01": "balanced-smoothing-0-01",
    "with more smoothing, 0.1": "balanced-smoothing-0-1",
    "FedAL as in the paper": "fedal",
}


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page as rows of cells, the heading first."""
    text = (ROOT / "docs" / "methods" / page).read_text(encoding="utf-8").replace("\N{MINUS SIGN}", "-")
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()] for block in blocks]


def rows_below(page: str, *heading: str) -> list[list[list[str]]]:
    """The rows of each table with this heading."""
    return [table[2:] for table in tables(page) if table[0][1:] == [*heading]]


def shown(folder: str, study: str, arm: str, measure: str) -> str:
    """The mean over seeds of a number of the final rows; an en dash if nothing has run."""
    files = sorted((RESULTS / folder / "data" / study / arm).glob("seed-*.json"))
    if not files:
        return "\N{EN DASH}"
    return f"{mean(json.loads(file.read_bytes())['final'][measure] for file in files):.3f}"


@pytest.mark.parametrize("column", STUDIES)
def test_the_ablation_of_fedlift_is_that_of_the_search(column: str) -> None:
    (rows,) = rows_below("fedlift.md", *STUDIES)
    assert {label for label, *_ in rows} == {*ARMS}
    study, index = STUDIES[column], 1 + [*STUDIES].index(column)
    for row in rows:
        expected = shown("search", study, ARMS[row[0]], "validation_accuracy")
        if (study, ARMS[row[0]]) == ("fashion-mnist", "fedeven"):
            expected = shown("search", study, "balanced", "validation_accuracy")  # the same settings by an older name
        assert row[index] == expected, row[0]


def test_the_three_numbers_of_fedlift_are_those_of_its_comparison_with_fedal() -> None:
    names = {
        "FedAL as in the paper": "fedal",
        "FedLift without certainty": "fedlift-certainty-0",
        "FedLift": "fedlift",
    }
    (rows,) = rows_below("fedlift.md", "accuracy", "bias", "ensemble", "gap")
    studies = {"SVHN-40k": "svhn", "CIFAR-10": "cifar10", "Fashion-MNIST": "fashion-mnist", "MNIST": "mnist"}
    assert len(rows) == len(names) * len(studies)
    for label, *cells in rows:
        dataset, name = label.split(": ")
        assert cells == [shown("lift", studies[dataset], names[name], f"test_{key}") for key in BOTTLENECKS], label


@pytest.mark.parametrize(("place", "study"), [(0, "fashion-mnist"), (1, "svhn")])
def test_the_tables_of_fedeven_are_those_of_the_search(place: int, study: str) -> None:
    rows = rows_below("fedeven.md", "accuracy", "bias", "ensemble", "gap")[place]
    for label, *cells in rows:
        assert cells == [shown("search", study, FEDEVEN_ARMS[label], f"validation_{key}") for key in BOTTLENECKS], label
