"""Every measure over the course of the runs, as charts (drawn by charts.js) and as tables."""

from __future__ import annotations

from fedal.records.numbers import NONE
from fedal.records.statistics import Point
from fedal.report.groups import Overview, swatch
from fedal.report.markup import Markup, element, folded, markup, table
from fedal.report.measures import Measure


def section(overview: Overview) -> Markup:
    axes = {"iterations": "iterations", "seconds": "seconds", "bytes": "uploaded bytes"}
    radios = [
        element("label", element("input", type="radio", name="axis", value=axis, checked=axis == "iterations"), title)
        for axis, title in axes.items()
    ]
    legend = [
        element("button", swatch(index), group.label, type="button", aria_pressed="true", data_group=index)
        for index, group in enumerate(overview.groups)
    ]
    seeds = max(len(group.records) for group in overview.groups)
    band = "Band: lowest to highest seed. " if seeds > 1 else ""
    text = (
        f"Line: mean over seeds. {band}To read values, hover over a chart, or focus it and use the arrow keys. "
        "Seconds and bytes (all clients together) are means over seeds. A method that uploads nothing is a dashed "
        "line at its last value."
    )
    controls = element(
        "div", element("fieldset", element("legend", "Horizontal axis"), *radios),
        element("div", *legend, cls="legend", role="group", aria_label="Show or hide methods"), cls="controls",
    )  # fmt: skip
    missing = element("noscript", element("p", "The curves need JavaScript; the tables below hold the same numbers."))
    return markup(element("p", text), controls, missing, _charts(overview))


def _charts(overview: Overview) -> Markup:
    shown = [m for m in overview.curves if overview.shows(m) and any(group.curve(m.key) for group in overview.groups)]
    if not shown:
        return element("p", "No evaluation has been recorded yet.")
    return element(
        "div", *(_chart(overview, measure, wide=measure is overview.accuracy) for measure in shown), cls="charts"
    )


def _chart(overview: Overview, measure: Measure, *, wide: bool) -> Markup:
    plot = element("div", cls="plot", data_measure=measure.key)
    caption = element(
        "figcaption", element("h3", measure.name[0].upper() + measure.name[1:]), element("p", measure.sentence)
    )
    return element("figure", caption, plot, _curve_table(overview, measure), cls="chart wide" if wide else "chart")


def _curve_table(overview: Overview, measure: Measure) -> Markup:
    """The same numbers as a table, for readers who cannot see the curves."""
    points = {group.label: {point.iteration: point for point in group.curve(measure.key)} for group in overview.groups}
    points = {label: found for label, found in points.items() if found}
    rows = []
    for iteration in sorted({iteration for found in points.values() for iteration in found}):
        cells = [found.get(iteration) for found in points.values()]
        rows.append([f"{iteration:g}", *(NONE if cell is None else _show_point(cell) for cell in cells)])
    caption = f"{measure.name} by iterations: mean over seeds (lowest to highest seed)"
    return folded("These numbers as a table", table(caption, ["iterations", *points], rows, name=measure.name))


def _show_point(point: Point) -> str:
    return f"{point.mean:.4g}" + f" ({point.low:.4g} to {point.high:.4g})" * (point.seeds > 1)
