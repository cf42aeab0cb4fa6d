"""A comparison as a table for a paper, in LaTeX or Markdown.

It says only what the tests allow: the best method is bold only if it is significantly above every other one.
"""

from __future__ import annotations

from collections.abc import Callable

from fedal.campaigns.comparison import Comparison
from fedal.records.numbers import NONE, p_value, shown_shortfall, signed
from fedal.records.tables import as_latex, as_markdown, escape_latex, escape_markdown

COLUMNS = ("worst client", "steps", "up / client", "down / client")


def latex_table(comparison: Comparison) -> str:
    """The table with booktabs, ready for \\input; all text is escaped."""
    heads, rows = _cells(comparison, escape_latex, r"\textbf{{{}}}".format)
    return as_latex(heads, rows, escape_latex(caption(comparison)))


def markdown_table(comparison: Comparison) -> str:
    """The table and, below it, its caption."""
    heads, rows = _cells(comparison, escape_markdown, "**{}**".format)
    return f"{as_markdown(heads, rows)}\n\n{escape_markdown(caption(comparison))}"


def caption(comparison: Comparison) -> str:
    """What the table shows, how it was tested, and what it cannot tell."""
    shown = [row for row in comparison.rows if row.runs]
    if not shown:
        return "No method has a finished run."
    words = comparison.shown.metric.words
    config, counts = shown[0].runs[0].config, " or ".join(map(str, sorted(comparison.seed_counts)))
    sentences = [
        f"Final models on the whole test set: {config.dataset}, {len(config.client_names)} clients, "
        f"{comparison.partition}, {shown[0].runs[0].final['iteration']} iterations.",
        f"{words[0].upper() + words[1:]}: mean over clients, then mean ± standard deviation over {counts} seeds; "
        "steps: optimizer steps per client.",
    ]
    if found := comparison.differences():
        sentences.append(
            f"Differences are from {comparison.baseline}, paired by seed (t-test, p corrected by Holm's method over "
            f"{len(found)} difference{'s' * (len(found) > 1)})."
        )
        sentences.append(shown_shortfall(found))
    if comparison.clear_best():
        better = "higher" if comparison.shown.metric.higher_is_better else "lower"
        sentences.append(f"Bold: {better} than every other method (Holm over all pairs, p < 0.05).")
    if any(not row.asked for row in comparison.rows):
        sentences.append("*: runs of an earlier call with this folder.")
    return " ".join(sentence for sentence in sentences if sentence)


def _cells(
    comparison: Comparison, escape: Callable[[str], str], bold: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """Headings and cells, escaped; the best method in bold if it is clear."""
    differences = comparison.differences() if comparison.baseline else {}
    best, table = comparison.clear_best(), comparison.table()
    heading, *others = comparison.shown.words, *comparison.beside, *COLUMNS
    columns = [name for name in ("method", "seeds", heading, *others) if any(name in cells for cells in table)]
    rows = []
    for row, cells in zip(comparison.rows, table, strict=True):
        found = differences.get(row.method)
        shown = [cells.get(name, NONE) for name in columns]
        shown += [signed(found.mean), p_value(found.corrected)] if found else [NONE, NONE]
        escaped = [escape(cell) for cell in shown]
        if row.method == best:
            place = columns.index(heading)
            escaped[place] = bold(escaped[place])
        rows.append(escaped)
    return [escape(name) for name in (*columns, "difference", "p (Holm)")], rows
