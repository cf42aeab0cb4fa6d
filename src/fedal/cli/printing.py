"""Output that several commands share: tables and the last line of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> None:
    """Prints a table; `numbers` right-aligns all columns but the first."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if numbers and index else "left")
    for row in rows:
        table.add_row(*map(escape, row))  # fedal[jax] is text, not a style
    console = Console()
    console.print(table) if console.is_terminal else Console(width=160).print(table)


def warn(text: object) -> None:
    print(f"warning: {text}", file=sys.stderr)


def verdict(final: dict[str, Any]) -> str:
    honest = f", honest clients {final['honest_test_accuracy']:.4f}" if "honest_test_accuracy" in final else ""
    return (
        f"final test accuracy {final['test_accuracy']:.4f} ± {final['test_accuracy_std']:.4f} over clients "
        f"(worst {final['test_accuracy_min']:.4f}) on {final['test_samples']} samples "
        f"after {final['iteration']} iterations{honest}"
    )
