"""Differences of each group from a baseline, paired by seed."""

from __future__ import annotations

from fedal.records.numbers import NONE, shown_difference
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table


def section(overview: Overview) -> Markup:
    options = [element("option", group.label, value=index) for index, group in enumerate(overview.groups)]
    seeds = min((len(group.finished) for group in overview.groups), default=0)
    text = (
        "Runs with the same seed share the data partition, so differences are paired by seed. The p-values are not "
        "corrected for multiple comparisons. "
    )
    if seeds < 5:
        text += (
            f"With {seeds} finished seed{'s' * (seeds != 1)} the test detects only differences that are large compared "
            "with the standard deviation: an interval around 0 means that more seeds are needed, not that the methods "
            "are equal."
        )
    choice = element("div", element("label", "Baseline", for_="baseline"), element("select", *options, id="baseline"),
                     cls="controls")  # fmt: skip
    return markup(element("p", text), choice, _table(overview))


def difference_rows(overview: Overview) -> list[list[list[str]]]:
    """The table's cells, group by group, for each choice of baseline."""
    return [[_difference_row(overview, group, base) for group in overview.groups] for base in overview.groups]


def _difference_row(overview: Overview, group: Group, baseline: Group) -> list[str]:
    found = None if group is baseline else overview.difference(group, baseline)
    if found is None:
        return [NONE, NONE, NONE, NONE, "the baseline" if group is baseline else "no seed in common"]
    return [str(found.seeds), *shown_difference(found)]


def _table(overview: Overview) -> Markup:
    rows = difference_rows(overview)[0]
    columns = ["method", "seeds in common", "mean difference", "95% interval", "p", "verdict"]
    body = [[overview.named(group), *cells] for group, cells in zip(overview.groups, rows, strict=True)]
    caption = f"Difference of the final {overview.accuracy.name} from the baseline, paired by seed (paired t-test)"
    return table(caption, columns, body, name="Paired differences", id="difference-table", cls="numbers stacked")
