"""Notes for the reader: warnings, and the definition of every number."""

from __future__ import annotations

from fedal.report.groups import Overview
from fedal.report.markup import Markup, bullets, element, table
from fedal.report.measures import ALL


def warnings(overview: Overview) -> Markup:
    if not overview.problems:
        return element("p", "None: every run is complete and every number is finite.")
    return bullets(overview.problems)


def meanings(overview: Overview) -> Markup:
    measures = dict.fromkeys([*ALL, *overview.curves])
    rows = [[m.name, m.model, m.data, m.average, m.sentence] for m in measures if overview.shows(m)]
    columns = ["number", "model", "data", "average", "meaning"]
    return table("Every number on this page", columns, rows, name="Definitions of the numbers", cls="words stacked")
