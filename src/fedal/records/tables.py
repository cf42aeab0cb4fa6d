"""Formats tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
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


def escape_markdown(text: str) -> str:
    """The text with characters that Markdown would read as formatting escaped; `as_markdown` escapes bars."""
    return re.sub(r"([\\`*_<\[\]])", r"\\\1", text)


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "–": "--",
    "\N{MINUS SIGN}": "$-$", "*": "$^{*}$",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """The text as LaTeX that shows it."""
    return "".join(LATEX.get(character, character) for character in text)


def as_latex(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """The table as LaTeX with booktabs; cells and caption are LaTeX already. All columns but the first are centred."""
    lines = [f"{' & '.join(cells)} \\\\" for cells in (heads, *rows)]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )
