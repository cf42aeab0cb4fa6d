"""The clients' data: samples by client and class, for each distinct partition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedal.records.numbers import share
from fedal.report.collect import Record
from fedal.report.groups import Overview
from fedal.report.markup import Markup, element, markup, table


def section(overview: Overview) -> Markup:
    partitions: dict[str, tuple[Record, list[str]]] = {}
    for group in overview.groups:
        for record in group.records:
            if record.class_counts:
                key = str((record.clients, record.class_counts))
                partitions.setdefault(key, (record, []))[1].append(f"{group.label}, seed {record.seed}")
    if overview.only_servers:
        return element("p", "The sites keep their data, so the server has no information about them.")
    if not partitions:
        return element("p", "No partition.npz could be read, so the clients' data cannot be shown.")
    parts = []
    for index, (record, users) in enumerate(partitions.values()):
        title = f"Partition {index + 1} of {len(partitions)}: {_used_by(overview, record, users)}"
        body = markup(element("p", _summary(record)), _counts_table(record, title))
        parts.append(element("details", element("summary", title), body, open=index == 0))
    return markup(*parts)


def _summary(record: Record) -> str:
    words = f"{share(record.effective_classes or math.nan, 2)} effective classes per client (exp of the entropy, mean)"
    return words if record.unassigned is None else f"{words}; {record.unassigned:,} unassigned training samples"


def _used_by(overview: Overview, record: Record, users: Sequence[str]) -> str:
    same_seed = [f"{g.label}, seed {r.seed}" for g in overview.groups for r in g.records if r.seed == record.seed]
    return f"seed {record.seed}, all methods" if list(users) == same_seed else "; ".join(users)


def _counts_table(record: Record, title: str) -> Markup:
    most = max((n for counts in record.class_counts for n in counts), default=1) or 1
    rows = [
        [client, *(_bubble(n, most) for n in counts), f"{sum(counts):,}"]
        for client, counts in zip(record.clients, record.class_counts, strict=True)
    ]
    classes = len(record.class_counts[0]) if rows else 0
    named = record.scores.classes if record.scores is not None else ()
    names = named if len(named) == classes else [f"class {k}" for k in range(classes)]
    columns = ["client", *names, "all"]
    caption = "Private samples of each client by class; a disc's area shows the number next to it"
    return table(caption, columns, rows, name=title, cls="bubbles")


def _bubble(n: int, most: int) -> Markup:
    if n <= 0:
        return element("span", "0", cls="none")
    disc = element("i", style=f"--d:{math.sqrt(n / most):.3f}", aria_hidden="true")
    return markup(disc, element("span", f"{n:,}"))
