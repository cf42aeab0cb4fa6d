"""The table of methods in the docs is the one computed from the declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedal import methods
from fedal.campaigns.comparison import Comparison, MethodRuns
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
    shared = {"tau", "local_loss", "prior_smoothing", "prior_strength", "public_mode", "temperature"}
    own = methods.get(name).options.model_fields.keys() - shared
    inherited = {"feddf", "feddf-al"}  # their pages refer to fedmd and fedal
    assert all(f"`{option}" in page for option in own) or name in inherited
    assert "Deviations" in page or name in ("local", "fedeven", "fedlift")  # no paper to deviate from


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_every_page_has_a_grade_a_run_that_learns_and_what_is_sent(name: str) -> None:
    """The accuracy of that run is compared with its file in tests/test_docs.py."""
    page, grade = (DOCS / f"{name}.md").read_text(encoding="utf-8"), methods.get(name).faithfulness
    assert f"Grade: `{grade}`" in page
    assert ("## What to expect" in page or "## Results" in page) and "## What crosses the wire" in page
    assert "econstruct" in page or grade != "reconstruction"


def test_every_row_is_complete_and_only_parameters_prevent_black_box() -> None:
    table = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows()}
    assert all(all(cells.values()) for cells in table.values())
    white = {name for name, cells in table.items() if cells["black-box"] == "no"}
    assert white == {name for name, module in methods.MODULES.items() if ".parameters." in module}
    assert table["fedal"]["up"] == "1,280 B/iteration" and table["fedal"]["down"] == "2,560 B/iteration"


def test_a_reconstruction_carries_that_word_in_tables_and_figures() -> None:
    assert methods.shown("mhat") == "mhat (reconstruction)" and methods.shown("fedmd") == "fedmd"
    assert methods.shown("package.module:METHOD") == "package.module:METHOD"  # foreign code is not read for a label
    comparison = Comparison(Path("nowhere"), (0,), [MethodRuns("fd"), MethodRuns("local")], [])
    assert [cells["method"] for cells in comparison.table()] == ["fd (reconstruction)", "local"]


def test_fedgkt_is_marked_as_revealing_labels_and_features() -> None:
    assert (Leak.PRIVATE_LABELS | Leak.PRIVATE_FEATURES) in methods.get("fedgkt").reveals
