"""Mean output probabilities of every client on samples of one class, if a run folder holds them."""

from __future__ import annotations

from collections.abc import Sequence

from fedal.report.collect import Record
from fedal.report.groups import Overview
from fedal.report.markup import Markup, element, markup, table


def section(overview: Overview) -> Markup:
    parts = []
    for group in overview.groups:
        for record in group.records:
            for name, rows in record.output_matrices.items():
                title = f"{group.label}, seed {record.seed}: {name}"
                parts.append(_matrix(title, record, rows))
    if parts:
        return markup(*parts)
    text = "Not available: no run has an analysis/output-matrix.json with its clients' mean outputs."
    return element("p", text)


def _matrix(title: str, record: Record, rows: Sequence[Sequence[float]]) -> Markup:
    names = record.clients if len(record.clients) == len(rows) else [f"client {n}" for n in range(len(rows))]
    columns = ["client", *(f"class {k}" for k in range(len(rows[0])))]
    body = [
        [client, *(element("span", f"{p:.2f}", style=f"--p:{p:.3f}") for p in row)]
        for client, row in zip(names, rows, strict=True)
    ]
    return table(f"Mean output probabilities. {title}", columns, body, name=title, cls="matrix")
