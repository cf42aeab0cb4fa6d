"""The table of methods in the docs is the one computed from the declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedal import methods
from fedal.messages import Leak
from fedal.methods.table import COLUMNS, as_markdown, rows

DOCS = Path(__file__).parents[2] / "docs" / "methods"
BEGIN, END = "<!-- table: checked by tests/methods/test_method_table.py -->\n", "<!-- end of table -->"


def test_the_docs_contain_the_table_computed_from_the_declarations() -> None:
    page = (DOCS / "README.md").read_text(encoding="utf-8")
    held = page.partition(BEGIN)[2].partition(END)[0]
    assert held == as_markdown(), "update docs/methods/README.md: python -m fedal.methods.table"


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_every_method_has_a_page_that_names_its_options(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    shared = {"tau", "local_loss", "prior_smoothing", "public_mode", "temperature"}
    own = methods.get(name).options.model_fields.keys() - shared
    inherited = {"feddf", "feddf-al"}  # their pages refer to fedmd and fedal
    assert all(f"`{option}" in page for option in own) or name in inherited
    assert "Deviations" in page or name == "local"


def test_every_row_is_complete_and_only_parameters_prevent_black_box() -> None:
    table = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows()}
    assert all(all(cells.values()) for cells in table.values())
    assert {name for name, cells in table.items() if cells["black-box"] == "no"} == {"fedavg", "feddf", "feddf-al"}
    assert table["fedal"]["up"] == "1,280 B/iteration" and table["fedal"]["down"] == "2,560 B/iteration"


def test_fedgkt_is_marked_as_revealing_labels_and_features() -> None:
    assert (Leak.PRIVATE_LABELS | Leak.PRIVATE_FEATURES) in methods.get("fedgkt").reveals
