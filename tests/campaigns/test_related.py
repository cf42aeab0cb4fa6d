"""Tables I and II of the paper: every row is a method, and every difference from the declarations has a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commands import fedal as command
from fedal import methods
from fedal.campaigns.paper.related import FORGETTING, RELATED, TABLES, RelatedTable, RelatedWork

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
ROWS = [row for table in TABLES.values() for row in table.rows]


def test_every_row_of_both_tables_is_here() -> None:
    printed = {table.name: [row.printed for row in table.rows] for table in TABLES.values()}
    assert printed["table-related"] == [
        "FedMD", "CFD", "MHAT", "FCCL", "FCCL+", "FD", "HFD", "FedProto", "FedGKT", "PerFed-CKT", "FedZKT", "FedAvg",
        "FedDF", "FedGen", "FedDistill+", "FedFTG", "FedGKD", "FedCVAE", "FedAL",
    ]  # fmt: skip
    assert printed["table-forgetting"] == [
        "FedLSD", "FedLSD (v2: FedNTD)", "FedRAD", "FedSSD", "FedReg", "DFRD", "Flashback", "Kim et al.", "FedBR",
        "pFedSD", "FedCurv", "FCCL", "FCCL+",
    ]  # fmt: skip
    assert {row.method for row in ROWS} <= set(methods.names())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.printed)
def test_a_difference_has_a_reason_and_a_reason_a_difference(row: RelatedWork) -> None:
    assert bool(row.differences()) == bool(row.why)


def test_the_known_differences_are_found() -> None:
    found = {(row.printed, name) for row in ROWS for name in row.differences()}
    assert ("FedCurv", "black-box") in found and ("FedDistill+", "heterogeneous") in found
    assert not [pair for pair in found if pair[0] in ("FedMD", "FedAL", "FedAvg", "FedGen", "FedZKT")]
    named = PAGE.read_text(encoding="utf-8").partition("## Tables I and II")[2].partition("## full")[0]
    assert all(re.search(rf"^\|.*\b{re.escape(name)}[ ,|]", named, re.MULTILINE) for name, _ in found)


@pytest.mark.parametrize("table", [RELATED, FORGETTING], ids=lambda table: table.name)
def test_the_command_prints_the_table_and_runs_nothing(
    table: RelatedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("paper", table.name)
    assert answer.code == 0 and not list(tmp_path.iterdir())
    assert all(row.method in answer.out for row in table.rows) and "reconstruction" in answer.out
    assert "no (paper: yes)" in answer.out
    assert table.name in command("paper", "list").out
