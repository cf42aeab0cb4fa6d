"""The final models client by client: metrics with intervals on pooled and held-out data, confusion, calibration."""

from __future__ import annotations

from collections.abc import Iterable

from fedal.metrics.table import DATA, METRICS
from fedal.records.numbers import NONE
from fedal.report.collect import Record
from fedal.report.groups import Overview
from fedal.report.markup import Markup, element, folded, markup, table
from fedal.report.scores_file import MAX_CLASSES, ClientScores, Scores

MAX_CLIENTS = 50  # of a run, whose tables are shown
SIDE = 180  # of a reliability diagram, in pixels


def has_scores(overview: Overview) -> bool:
    return any(record.scores is not None for record in overview.records)


def section(overview: Overview) -> Markup:
    text = (
        "In brackets: the 95% interval of a bootstrap over test samples, within classes. It says how much the number "
        "would vary with other test samples, not with another seed. Own held-out data are samples of the client that "
        "it does not train on. A dash: not defined, for instance a curve of samples of one class."
    )
    runs = [
        _run(f"{group.label}, seed {record.seed}", record, record.scores)
        for group in overview.groups
        for record in group.records
        if record.scores is not None
    ]
    return markup(element("p", text), *runs)


def _run(title: str, record: Record, scores: Scores) -> Markup:
    parts = [_overview_table(title, scores)]
    for client, each in list(scores.clients.items())[:MAX_CLIENTS]:
        details = [_details(client, data, found, scores) for data, found in each.items()]
        parts.append(folded(f"{client}: classes, confusion matrix and reliability", *details))
    return markup(element("h3", title), *parts)


def _overview_table(title: str, scores: Scores) -> Markup:
    """One row per client and metric, with one column per kind of data, side by side."""
    kinds = list(dict.fromkeys(data for each in scores.clients.values() for data in each if data in DATA))
    names = list(dict.fromkeys(n for each in scores.clients.values() for found in each.values() for n in found.values))
    rows = [
        [client, METRICS[name].words, *(_cell(each.get(data), name) for data in kinds)]
        for client, each in scores.clients.items()
        for name in names
    ]
    about = "" if scores.positive is None else f"; the positive class is {scores.positive}"
    columns = ["client", "metric", *(f"{DATA[data]} data" for data in kinds)]
    return table(f"{title}: final models{about}", columns, rows, name=f"Scores of {title}", cls="numbers stacked")


def _cell(found: ClientScores | None, name: str) -> str:
    if found is None or name not in found.values:
        return NONE
    low, high = found.intervals.get(name, (float("nan"), float("nan")))
    return f"{found.values[name]:.4f} [{low:.4f}, {high:.4f}]"


def _details(client: str, data: str, found: ClientScores, scores: Scores) -> Markup:
    where = f"{client}, {DATA.get(data, data)} data, {found.samples} samples"
    if len(scores.classes) > MAX_CLASSES:
        return element("p", f"{where}: {len(scores.classes)} classes are too many for a table.")
    per_class = table(
        f"Classes: {where}", ["class", "precision", "recall", "F1", "samples"],
        [[name, f"{p:.4f}", f"{r:.4f}", f"{f:.4f}", n] for name, (p, r, f, n) in zip(scores.classes, found.per_class)],
        name=f"Classes of {where}", cls="numbers stacked",
    )  # fmt: skip
    rows = [
        [name, *(element("span", count, style=f"--p:{count / max(1, sum(counts)):.3f}") for count in counts)]
        for name, counts in zip(scores.classes, found.confusion, strict=True)
    ]
    confusion = table(
        f"Confusion matrix, true class by row, predicted by column: {where}", ["true class", *scores.classes], rows,
        name=f"Confusion of {where}", cls="matrix",
    )  # fmt: skip
    return markup(per_class, confusion, _diagram(where, found.reliability))


def _diagram(where: str, points: Iterable[tuple[float, float, int]]) -> Markup:
    """Observed share against predicted probability; the diagonal is perfect calibration. The table has the numbers."""
    shown = list(points)
    line = element("line", x1=0, y1=SIDE, x2=SIDE, y2=0, stroke="currentColor", stroke_dasharray="4 4", opacity=0.5)
    largest = max((n for *_, n in shown), default=1)
    dots = [
        element("circle", cx=round(SIDE * p, 1), cy=round(SIDE * (1 - o), 1), r=round(3 + 6 * (n / largest) ** 0.5, 1),
                fill="var(--c0)", opacity=0.7)
        for p, o, n in shown
    ]  # fmt: skip
    frame = element("rect", x=0, y=0, width=SIDE, height=SIDE, fill="none", stroke="var(--line)")
    plot = element(
        "svg", frame, line, *dots, viewBox=f"-10 -10 {SIDE + 20} {SIDE + 20}", width=SIDE + 20, height=SIDE + 20,
        role="img", aria_label=f"Reliability diagram of {where}; the table below holds the numbers",
    )  # fmt: skip
    text = element("p", "Reliability: predicted probability (right) against observed share (up); larger discs are "
                   "bins with more samples.")  # fmt: skip
    rows = [[f"{p:.3f}", f"{o:.3f}", n] for p, o, n in shown]
    numbers = table(f"Reliability: {where}", ["predicted", "observed", "samples"], rows, name=f"Reliability of {where}")
    return element("figure", element("figcaption", text), plot, numbers, cls="chart")
