"""Writes one self-contained HTML file: no network, no libraries, and every text from a run folder is escaped."""

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
from fedal.report.collect import clean, collect
from fedal.report.groups import Overview, overview
from fedal.report.markup import Markup, element, embedded_json, markup
from fedal.report.measures import DISCRIMINATOR
from fedal.report.sections import (
    clients,
    curves,
    data,
    differences,
    discriminator,
    outputs,
    participation,
    reading,
    result,
    scores,
    setup,
    target,
    wire,
)


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Reads the folders and writes the page (by default into the first of them); returns its path and the warnings."""
    path = out or folders[0] / "report.html"
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a file to write. Try --out {path / 'report.html'}.")
    found = overview(collect(folders))
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: no such folder. Create it, or choose another --out.")
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
        navigation=markup(*(element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections)),
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
    return element("p", link, ": read before you trust a number.", cls="alert")


def _section(name: str, title: str, content: Markup) -> Markup:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, content, id=name, aria_labelledby=f"{name}-title")


def _sections(found: Overview) -> list[tuple[str, str, Markup]]:
    parts = [
        ("result", "Result", result.section(found)),
        ("run", "What was run", setup.what_was_run(found)),
        ("curves", "Curves", curves.section(found)),
        ("target", "Time to target accuracy", target.section(found)),
        ("differences", "Differences", differences.section(found)),
        ("clients", "Clients", clients.section(found)),
        *([("scores", "Scores", scores.section(found))] if scores.has_scores(found) else []),
        *([("participation", "Participation", participation.section(found))] if participation.has_news(found) else []),
        ("discriminator", "Discriminator", discriminator.section(found)),
        ("data-of-clients", "Clients' data", data.section(found)),
        ("outputs", "Output matrix", outputs.section(found)),
        ("wire", "Messages", wire.section(found)),
        ("settings", "Settings", setup.settings(found)),
        ("meanings", "Definitions", reading.meanings(found)),
    ]
    warnings = ("warnings", "Warnings", reading.warnings(found))
    return [warnings, *parts] if found.problems else [*parts, warnings]


def chart_data(found: Overview) -> dict[str, Any]:
    """The data for charts.js: numbers, and the cells of the interactive tables."""
    groups = []
    for group in found.groups:
        values = clients.values(found, group)
        box = distribution([value for value, _ in values])
        groups.append(
            {
                "label": group.label,
                "curves": {measure.key: group.curve(measure.key) for measure in found.curves},
                "clients": values,
                "box": box,
            }
        )
    counts = {group.client_count for group in found.groups if group.curve(DISCRIMINATOR.key)} - {0}
    return {
        "groups": groups,
        "measures": {measure.key: {"name": measure.name, "unit": measure.unit} for measure in found.curves},
        "chance": 1 / counts.pop() if len(counts) == 1 else None,
        "targets": target.target_rows(found),
        "accuracy": found.accuracy.name,
        "differences": differences.difference_rows(found),
        "shortfalls": differences.shortfalls(found),
    }
