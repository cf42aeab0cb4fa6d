"""The files, functions, tests, links and record keys that the documents name exist."""

import ast
import csv
import re
from functools import cache
from pathlib import Path

import pytest

import fedal

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAP = ROOT / "docs" / "paper-to-code.md"


@cache
def defined(path: Path) -> frozenset[str]:
    """Returns the functions, classes and methods (as Class.method) of a Python file."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return frozenset(names)


def rows() -> list[list[str]]:
    """Returns the cells of every table row in the map, without headings."""
    lines = [line for line in MAP.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("paper", "line", "statement")]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_function_and_test_in_the_map_exists(row: list[str]) -> None:
    for cell, folder in [(row[-1], "tests/"), *([(row[-2], "src/")] if len(row) == 4 else [])]:
        places = re.findall(r"`([^`]+)`", cell)
        assert places, f"no place is named in: {cell}"
        for place in places:
            file, _, name = place.partition("::")
            assert file.startswith(folder), place
            assert (ROOT / file).is_file(), place
            assert name in defined(ROOT / file), place


def test_every_equation_label_in_the_code_is_one_of_the_paper() -> None:
    """Every label cited in the source has a row in the map, so that each leads to the other."""
    text = MAP.read_text(encoding="utf-8")
    cited = {
        (label, path.name)
        for path in (ROOT / "src").rglob("*.py")
        for label in re.findall(r"Eq\. \(([\w-]+)\)", path.read_text(encoding="utf-8"))
    }
    assert cited
    assert not [(label, file) for label, file in sorted(cited) if f"Eq. ({label})" not in text]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_named_in_a_document_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs|configs|examples|benchmarks)/[\w./-]+)(?:::[\w.]+)?`", text)
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_keys_of_the_records_of_a_run_are_documented(tmp_path: Path) -> None:
    config = fedal.Config(method="fedal", dataset="digits", clients=2, iterations=5, eval_every=5)
    run = fedal.run(config, tmp_path / "run")
    keys = {key for row in [*run.metrics, *run.client_metrics] for key in row}
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert {"test_accuracy", "discriminator_accuracy", "private_samples"} <= keys
    assert not [key for key in sorted(keys) if f"`{key}`" not in text]


def test_the_files_of_the_twelve_changes_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Where to make a change")[2].partition("\n## ")[0]
    changes = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(changes) == 12
    named = [name for line in changes for name in re.findall(r"`([\w/]+(?:\.py|/))`", line)]
    assert not [name for name in named if not (ROOT / "src/fedal" / name).exists()]
    assert all(len(set(re.findall(r"`([\w/]+(?:\.py|/))`", line))) <= 3 for line in changes)


def test_the_method_pages_show_the_accuracies_of_their_file() -> None:
    folder = ROOT / "docs" / "methods"
    with open(folder / "digits.csv", encoding="utf-8", newline="") as file:
        found = {row["method"]: f"{float(row['test_accuracy_mean']):.3f}" for row in csv.DictReader(file)}
    assert found.keys() == set(fedal.methods.names())
    stale = {name: value for name, value in found.items() if value not in (folder / f"{name}.md").read_text("utf-8")}
    assert not stale
