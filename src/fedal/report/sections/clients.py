"""The distribution of accuracy over clients, and the worst client."""

from __future__ import annotations

import math

from fedal.records.numbers import NONE, share
from fedal.records.statistics import Row, distribution
from fedal.report.collect import Record
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table


def section(overview: Overview) -> Markup:
    same = "the same data in all" if overview.has_own_data else "different data in different"
    text = (
        "One dot per client and seed; the box spans the middle half, its line is the median. Clients with the same "
        f"name have {same} seeds."
    )
    plot = element("div", id="client-plot", role="img", aria_label="Accuracy of individual clients; the table below "
                   "holds the numbers")  # fmt: skip
    chart = element("figure", element("figcaption", element("p", text)), plot, cls="chart wide")
    return markup(chart, _table(overview))


def values(overview: Overview, group: Group) -> list[tuple[float, str]]:
    """Final accuracy and name of every client of every seed."""
    key = overview.accuracy.key
    return [(row[key], _client_name(record, row)) for record, row in _finals(group, key)]


def _finals(group: Group, key: str) -> list[tuple[Record, Row]]:
    found = [(record, row) for record in group.finished for row in record.final_clients]
    return [(record, row) for record, row in found if math.isfinite(row.get(key, math.nan))]


def _client_name(record: Record, row: Row) -> str:
    return f"{row.get('client', 'unnamed')}, seed {record.seed}"


def _table(overview: Overview) -> Markup:
    rows = []
    for group in overview.groups:
        five = distribution([value for value, _ in values(overview, group)])
        cells = [*(share(value, 3) for value in five), _worst(overview, group)] if five else [NONE] * 6
        rows.append([overview.named(group), *cells])
    caption = f"Final {overview.accuracy.name} of individual clients, all seeds together"
    worst = "lowest client" if overview.accuracy.higher_is_better else "highest client"
    columns = ["method", "lowest", "25%", "median", "75%", "highest", worst]
    return table(caption, columns, rows, name="Clients", cls="numbers stacked")


def _worst(overview: Overview, group: Group) -> str:
    key, sign = overview.accuracy.key, 1 if overview.accuracy.higher_is_better else -1
    record, row = min(_finals(group, key), key=lambda found: sign * float(found[1][key]))
    samples = row.get("private_samples", math.nan)
    about = [str(row.get("model", "model unknown"))] * (not record.is_server)
    about += [f"{samples:.0f} private samples"] * math.isfinite(samples)
    return _client_name(record, row) + f" ({', '.join(about)})" * bool(about)
