"""Time to target accuracy: iterations, seconds and bytes until an accuracy is first reached."""

from __future__ import annotations

import math
from statistics import fmean

from fedal.records.numbers import NONE, count, duration, size
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table
from fedal.report.measures import TIME, UPLOADED

TARGETS = [percent / 100 for percent in range(1, 101)]


def section(overview: Overview) -> Markup:
    limits = dict(min=1, max=100, step=1, value=_default_target(overview))
    name = "Target accuracy in percent"
    controls = element(
        "div",
        element("label", name, for_="target-number"),
        element("input", type="number", id="target-number", **limits),
        element("input", type="range", id="target-range", aria_label=name, **limits),
        cls="controls",
    )
    return markup(controls, _table(overview))


def _default_target(overview: Overview) -> int:
    """The default target in percent: 95% of the best group's accuracy."""
    best = overview.best
    return max(1, math.floor(95 * best.mean(overview.accuracy.key))) if best else 50


def target_rows(overview: Overview) -> list[list[list[str]]]:
    """The table's cells, group by group, for each target of `TARGETS`."""
    return [[_target_row(group, target, overview.accuracy.key) for group in overview.groups] for target in TARGETS]


def _target_row(group: Group, target: float, key: str) -> list[str]:
    reached = group.reached(target, key)
    seeds = f"{len(reached)} of {len(group.records)}"
    if not reached:
        return [seeds, "not reached", NONE, NONE]
    sent = fmean(r.up_bytes for r in reached) / (group.client_count or 1)
    time = duration(fmean(r.seconds for r in reached))
    return [seeds, count(fmean(r.iteration for r in reached)), time, size(sent)]


def _table(overview: Overview) -> Markup:
    rows = target_rows(overview)[_default_target(overview) - 1]
    columns: list[str | tuple[str, str]] = ["method", "seeds that reach it", "iterations", TIME.name]
    columns.append((UPLOADED.name, "per client"))
    body = [[overview.named(group), *cells] for group, cells in zip(overview.groups, rows, strict=True)]
    caption = "First evaluation with at least the target accuracy, mean over the seeds that reach it"
    return table(caption, columns, body, name="Time and bytes to the target", id="target-table", cls="numbers stacked")
