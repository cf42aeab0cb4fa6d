"""Output that several commands share: tables and the last line of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fedal.metrics.table import first_column


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
    shown = first_column(final)
    honest = f", honest clients {final['honest_test_accuracy']:.4f}" if "honest_test_accuracy" in final else ""
    return (
        f"final {shown.words} {final[shown.key]:.4f} ± {final[f'{shown.key}_std']:.4f} over clients "
        f"(worst {final[shown.worst_key]:.4f}) on {final['test_samples']} samples "
        f"after {final['iteration']} iterations{honest}{_sampled(final, shown.key)}"
    )


def _sampled(final: dict[str, Any], key: str) -> str:
    """What the mean of a sample of clients says about all of them; empty if all were evaluated."""
    if f"{key}_error" not in final:
        return ""
    error = final[f"{key}_error"]
    return f"; {final['evaluated_clients']} clients were drawn, so the mean has a standard error of {error:.4f}"
