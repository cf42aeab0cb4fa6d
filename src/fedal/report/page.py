"""One self-contained HTML file: no network, no library, and no text of a run folder that is not escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedal.durable import write_atomically
from fedal.errors import ConfigError
from fedal.records.statistics import distribution
from fedal.report import context, results
from fedal.report.collect import clean, collect
from fedal.report.groups import Overview, overview
from fedal.report.markup import Markup, element, embedded_json, markup
from fedal.report.measures import CURVES, DISCRIMINATOR


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Reads the folders and writes the page (by default into the first of them); gives its path and the warnings."""
    found = overview(collect(folders))
    path = out or folders[0] / "report.html"
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: there is no such folder. Choose another --out.")
    names = ", ".join(clean(folder.resolve().name) for folder in folders)
    write_atomically(path, render(found, names).encode())
    return path, found.problems


def render(found: Overview, names: str) -> str:
    """The page as text."""
    script = _file("charts.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = _sections(found)
    return Template(_file("page.html")).substitute(
        script_hash=f"sha256-{digest}",
        title=markup(f"fedal report: {names}"),
        heading=markup(names),
        style=_file("style.css"),
        warned=_warned(found),
        navigation=markup(
            *(element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections),
        ),
        sections=markup(*(_section(name, title, content) for name, title, content in sections)),
        version=markup(version("fedal")),
        data=embedded_json(chart_data(found)),
        script=script,
    )


def _file(name: str) -> str:
    return files("fedal.report").joinpath(name).read_text(encoding="utf-8")


def _warned(found: Overview) -> Markup:
    if not found.problems:
        return markup()
    n = len(found.problems)
    link = element("a", f"{n} warning{'s' * (n > 1)}", href="#warnings")
    return element("p", link, ": read before you believe a number.", cls="alert")


def _section(name: str, title: str, content: Markup) -> Markup:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, content, id=name, aria_labelledby=f"{name}-title")


def _sections(found: Overview) -> list[tuple[str, str, Markup]]:
    parts = [
        ("result", "Result", markup(results.headline(found), results.final_table(found))),
        ("run", "What was run", context.what_was_run(found)),
        ("curves", "Curves", markup(_curve_controls(found), results.curves(found))),
        ("target", "Way to a target", markup(_target_controls(found), results.target_table(found))),
        ("differences", "Differences", markup(_difference_controls(found), results.difference_table(found))),
        ("clients", "Clients", markup(_client_chart(), results.client_table(found))),
        ("discriminator", "Discriminator", results.discriminator(found)),
        ("data-of-clients", "Clients' data", context.clients_data(found)),
        ("outputs", "Output matrix", context.output_matrices(found)),
        ("wire", "The wire", context.wire(found)),
        ("settings", "Settings", context.settings(found)),
        ("meanings", "Meanings", context.meanings(found)),
    ]
    warnings = ("warnings", "Warnings", context.warnings(found))
    return [warnings, *parts] if found.problems else [*parts, warnings]


def _curve_controls(found: Overview) -> Markup:
    axes = {"iterations": "iterations", "seconds": "seconds", "bytes": "uploaded bytes"}
    radios = [
        element("label", element("input", type="radio", name="axis", value=axis, checked=axis == "iterations"), title)
        for axis, title in axes.items()
    ]
    legend = [
        element("button", results.swatch(index), group.label, type="button", aria_pressed="true", data_group=index)
        for index, group in enumerate(found.groups)
    ]
    seeds = max(len(group.records) for group in found.groups)
    band = "The band goes from the lowest to the highest seed. " if seeds > 1 else ""
    text = (
        f"Line: mean over seeds. {band}Point at a chart, or focus it and use the arrow keys, to read values. "
        "Seconds and bytes (of all clients together) are means over seeds; a method that uploads nothing is a dashed "
        "line at its last value."
    )
    controls = element(
        "div", element("fieldset", element("legend", "Against"), *radios),
        element("div", *legend, cls="legend", role="group", aria_label="Show or hide methods"), cls="controls",
    )  # fmt: skip
    missing = element("noscript", element("p", "The curves need JavaScript; the tables below hold the same numbers."))
    return markup(element("p", text), controls, missing)


def _target_controls(found: Overview) -> Markup:
    target = results.default_target(found)
    limits = dict(min=1, max=100, step=1, value=target)
    name = "Target accuracy in percent"
    return element(
        "div",
        element("label", name, for_="target-number"),
        element("input", type="number", id="target-number", **limits),
        element("input", type="range", id="target-range", aria_label=name, **limits),
        cls="controls",
    )


def _difference_controls(found: Overview) -> Markup:
    options = [element("option", group.label, value=index) for index, group in enumerate(found.groups)]
    seeds = min((len(group.finished) for group in found.groups), default=0)
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
    return markup(element("p", text), choice)


def _client_chart() -> Markup:
    text = (
        "One dot per client and seed; the box holds the middle half, its line is the median. A client of another "
        "seed has other data, even under the same name."
    )
    plot = element("div", id="client-plot", role="img", aria_label="Accuracy of single clients; the table below "
                   "holds the numbers")  # fmt: skip
    return element("figure", element("figcaption", element("p", text)), plot, cls="chart wide")


def chart_data(found: Overview) -> dict[str, Any]:
    """What charts.js draws: numbers, and cells of the tables that switch."""
    groups = []
    for group in found.groups:
        values = results.client_values(group)
        box = distribution([value for value, _ in values])
        groups.append(
            {
                "label": group.label,
                "curves": {measure.key: group.curve(measure.key) for measure in CURVES},
                "clients": values,
                "box": box and [box.low, box.quarter, box.median, box.three_quarters, box.high],
            }
        )
    counts = {group.client_count for group in found.groups if group.curve(DISCRIMINATOR.key)} - {0}
    return {
        "groups": groups,
        "measures": {measure.key: {"name": measure.name, "unit": measure.unit} for measure in CURVES},
        "chance": 1 / counts.pop() if len(counts) == 1 else None,
        "targets": results.target_rows(found),
        "differences": results.difference_rows(found),
    }
