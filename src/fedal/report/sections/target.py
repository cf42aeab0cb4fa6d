"""Time to target accuracy: iterations, seconds and bytes until an accuracy is first reached."""

from __future__ import annotations

import math
from statistics import fmean

from fedal.records.numbers import NONE, count, duration, size
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table
from fedal.report.measures import ACCURACY, TIME, UPLOADED, Measure

TARGETS = [percent / 100 for percent in range(1, 101)]


def section(overview: Overview) -> Markup:
    limits = dict(min=1, max=100, step=1, value=_default_target(overview))
    name = f"Target {_short_name(overview)} in percent"
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
    reached = best.mean(_measure(overview).key) if best else math.nan
    return max(1, math.floor(95 * reached)) if math.isfinite(reached) else 50


def _measure(overview: Overview) -> Measure:
    """What is to be reached: the headline, or accuracy where that is a loss."""
    is_share = overview.accuracy.unit == "share" and overview.accuracy.higher_is_better
    return overview.accuracy if is_share else ACCURACY


def _short_name(overview: Overview) -> str:
    return "accuracy" if _measure(overview).key.endswith("_accuracy") else _measure(overview).name


def target_rows(overview: Overview) -> list[list[list[str]]]:
    """The table's cells, group by group, for each target of `TARGETS`."""
    key = _measure(overview).key
    return [[_target_row(group, target, key) for group in overview.groups] for target in TARGETS]


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
    caption = f"First evaluation with at least the target {_short_name(overview)}, mean over the seeds that reach it"
    return table(caption, columns, body, name="Time and bytes to the target", id="target-table", cls="numbers stacked")
