"""Formats tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def as_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table as Markdown without a final line break; bars inside cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def as_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table as CSV, with all digits of its numbers."""
    buffer = io.StringIO()
    csv.writer(buffer).writerows([heads, *rows])
    return buffer.getvalue()
