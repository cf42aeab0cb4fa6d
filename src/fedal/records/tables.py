"""Tables as files: Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def as_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """No line break at the end. A bar inside a cell ends no cell."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def as_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers with all their digits."""
    buffer = io.StringIO()
    csv.writer(buffer).writerows([heads, *rows])
    return buffer.getvalue()
