"""Differences of each group from a baseline, paired by seed."""

from __future__ import annotations

from fedal.records.numbers import DIFFERENCE_HEADS, NONE, shown_difference, shown_shortfall
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table


def section(overview: Overview) -> Markup:
    options = [element("option", group.label, value=index) for index, group in enumerate(overview.groups)]
    text = (
        "Runs with the same seed share the data partition, so differences are paired by seed. Each interval covers its "
        "own difference with 95%. The verdict follows the p-value after Holm's correction over all differences from "
        "the baseline. Choose the baseline before looking: each choice is corrected on its own. A difference that is "
        "not distinguishable may still exist: it takes more seeds to tell."
    )
    choice = element("div", element("label", "Baseline", for_="baseline"), element("select", *options, id="baseline"),
                     cls="controls")  # fmt: skip
    lack = element("p", shortfalls(overview)[0] if overview.groups else "", id="shortfall")
    return markup(element("p", text), choice, _table(overview), lack)


def difference_rows(overview: Overview) -> list[list[list[str]]]:
    """The table's cells, group by group, for each choice of baseline."""
    return [_rows(overview, baseline) for baseline in overview.groups]


def shortfalls(overview: Overview) -> list[str]:
    """For each choice of baseline, the sentence below a table without a significant difference."""
    named = [
        {overview.groups[place].label: found for place, found in overview.differences(baseline).items()}
        for baseline in overview.groups
    ]
    return [shown_shortfall(found) for found in named]


def _rows(overview: Overview, baseline: Group) -> list[list[str]]:
    found, empty = overview.differences(baseline), [NONE] * (2 + len(DIFFERENCE_HEADS))
    rows = []
    for place, group in enumerate(overview.groups):
        if place in found:
            rows.append([str(found[place].seeds), *shown_difference(found[place])])
        else:
            rows.append([*empty, "the baseline" if group is baseline else "no seed in common"])
    return rows


def _table(overview: Overview) -> Markup:
    rows = difference_rows(overview)[0] if overview.groups else []
    columns = ["method", "seeds in common", "mean difference", *DIFFERENCE_HEADS, "verdict"]
    body = [[overview.named(group), *cells] for group, cells in zip(overview.groups, rows, strict=True)]
    caption = f"Difference of the final {overview.accuracy.name} from the baseline, paired by seed (paired t-test)"
    return table(caption, columns, body, name="Paired differences", id="difference-table", cls="numbers stacked")
