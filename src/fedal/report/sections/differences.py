"""Each group against a baseline, seed by seed."""

from __future__ import annotations

from fedal.records.numbers import NONE, shown_difference
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table


def section(overview: Overview) -> Markup:
    options = [element("option", group.label, value=index) for index, group in enumerate(overview.groups)]
    seeds = min((len(group.finished) for group in overview.groups), default=0)
    text = (
        "Runs of one seed share the division of the data, so they are compared seed by seed. The p values are not "
        "corrected for the number of comparisons. "
    )
    if seeds < 5:
        text += (
            f"With {seeds} finished seed{'s' * (seeds != 1)} the test sees only differences that are large against the "
            "spread: an interval around 0 means that more seeds are needed, not that the methods are equal."
        )
    choice = element("div", element("label", "Baseline", for_="baseline"), element("select", *options, id="baseline"),
                     cls="controls")  # fmt: skip
    return markup(element("p", text), choice, _table(overview))


def difference_rows(overview: Overview) -> list[list[list[str]]]:
    """For every group as the baseline the cells of the table, group by group."""
    return [[_difference_row(overview, group, base) for group in overview.groups] for base in overview.groups]


def _difference_row(overview: Overview, group: Group, baseline: Group) -> list[str]:
    found = None if group is baseline else overview.difference(group, baseline)
    if found is None:
        return [NONE, NONE, NONE, NONE, "the baseline" if group is baseline else "no seed in common"]
    return [str(found.seeds), *shown_difference(found)]


def _table(overview: Overview) -> Markup:
    rows = difference_rows(overview)[0]
    columns = ["method", "seeds in common", "mean difference", "95% interval", "p", "the method is"]
    body = [[overview.named(group), *cells] for group, cells in zip(overview.groups, rows, strict=True)]
    caption = f"Difference of the final {overview.accuracy.name} to the baseline, seed by seed (Student's paired test)"
    return table(caption, columns, body, name="Paired differences", id="difference-table", cls="numbers stacked")
