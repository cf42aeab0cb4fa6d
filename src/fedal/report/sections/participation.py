"""Participation of clients, in deployed federations and in runs where a client missed a round."""

from __future__ import annotations

from collections import defaultdict

from fedal.records.numbers import NONE, size
from fedal.records.statistics import Row, mean, round_ends
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, table
from fedal.report.measures import DOWNLOADED, UPLOADED


def has_news(overview: Overview) -> bool:
    return overview.has_absences or any(record.is_server for record in overview.records)


def section(overview: Overview) -> Markup:
    columns = ["client", "method", "recorded rounds completed", UPLOADED.name, DOWNLOADED.name]
    rows = [row for group in overview.groups for row in _rows(overview, group)]
    if any(row[-1] for row in rows):
        columns.append("strikes")
    else:
        rows = [row[:-1] for row in rows]
    caption = "Participation; a client that misses an exchange keeps its weights and returns in the next round"
    return table(caption, columns, rows, name="Participation", cls="numbers stacked")


def _rows(overview: Overview, group: Group) -> list[list[object]]:
    """One per client, all seeds together; bytes are means over seeds."""
    ends: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for record in group.records:
        # A simulated run evaluates its last round twice, and its clients once before the first round.
        for row in round_ends(record.client_rows, final=record.is_server):
            if row["iteration"] == 0:
                continue
            ends[str(row.get("client", "unnamed"))][record.seed].append(row)
    return [[client, overview.named(group), *_cells(list(seeds.values()))] for client, seeds in ends.items()]


def _cells(seeds: list[list[Row]]) -> list[str]:
    known = [row["participated"] for rows in seeds for row in rows if "participated" in row]
    sent = [mean(rows[-1][m.key] for rows in seeds if m.key in rows[-1]) for m in (UPLOADED, DOWNLOADED)]
    return [f"{sum(known):.0f} of {len(known)}" if known else NONE, *map(size, sent), _strikes(seeds[-1][-1])]


def _strikes(last: Row) -> str:
    """A site's strikes in a deployed federation, and whether they led to quarantine; empty without any."""
    if "strikes" not in last:
        return ""
    return f"{last['strikes']:.0f}, in quarantine" if last.get("quarantined") else f"{last['strikes']:.0f}"
