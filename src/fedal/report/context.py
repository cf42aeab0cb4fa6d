"""The sections around the results: warnings, what was run, the clients' data, the wire, settings, meanings."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from fedal import methods
from fedal.messages import Message, in_words
from fedal.records.numbers import NONE, size
from fedal.report.collect import Record
from fedal.report.groups import Group, Overview, as_text
from fedal.report.markup import Markup, bullets, definitions, element, folded, markup, table
from fedal.report.measures import ALL, DOWNLOADED, UPLOADED
from fedal.report.results import named, recorded


def warnings(overview: Overview) -> Markup:
    if not overview.problems:
        return element("p", "None: every run is complete and every number is finite.")
    return bullets(overview.problems)


def what_was_run(overview: Overview) -> Markup:
    def setting(key: str) -> str:
        if not any(key in group.settings for group in overview.groups):
            return "(not known)"
        return as_text(overview.shared[key]) if key in overview.shared else "(differs: see Settings)"

    done, planned = sum(record.is_complete for record in overview.records), len(overview.records)
    seeds = sorted({record.seed for record in overview.records})
    sources = {str(r.environment["data"]) for r in overview.records if "data" in r.environment}
    clients = sorted({group.client_count for group in overview.groups} - {0})
    return definitions(
        [
            ("methods", ", ".join(group.label for group in overview.groups)),
            ("runs", f"{planned}, {'all' if done == planned else done} complete; seeds {', '.join(map(str, seeds))}"),
            ("data set", "; ".join(sorted(sources)) or setting("dataset")),
            ("clients", f"{' or '.join(map(str, clients)) or 'not known'}; models: {_models(overview.records)}"),
            ("division", f"{setting('partition')}, alpha {setting('alpha')} (smaller is more skewed)"),
            ("public set", f"{setting('public_size')} samples without labels"),
            ("length", f"{setting('iterations')} iterations; tau {setting('tau')} iterations per stage"),
            ("training", f"{setting('optimizer')}, lr {setting('lr')}, batches of {setting('batch_size')}"),
        ]
    )


def _models(records: Sequence[Record]) -> str:
    """How many clients of the first run that says so have which model."""
    for record in records:
        found = record.environment.get("clients")
        if isinstance(found, dict) and found:
            return ", ".join(f"{n} {name}" for name, n in Counter(map(str, found.values())).items())
    return "not known"


# the clients' data


def clients_data(overview: Overview) -> Markup:
    """One client x class table for every division that occurs; the first is open."""
    divisions: dict[str, tuple[Record, list[str]]] = {}
    for group in overview.groups:
        for record in group.records:
            if record.class_counts:
                key = str((record.clients, record.class_counts))
                divisions.setdefault(key, (record, []))[1].append(f"{group.label}, seed {record.seed}")
    if not divisions:
        return element("p", "No partition.npz could be read, so the clients' data cannot be shown.")
    parts = []
    for index, (record, users) in enumerate(divisions.values()):
        title = f"Division {index + 1} of {len(divisions)}: {_used_by(overview, record, users)}"
        body = _counts_table(record, title)
        parts.append(element("details", element("summary", title), body, open=index == 0))
    return markup(*parts)


def _used_by(overview: Overview, record: Record, users: Sequence[str]) -> str:
    same_seed = [f"{g.label}, seed {r.seed}" for g in overview.groups for r in g.records if r.seed == record.seed]
    return f"seed {record.seed}, all methods" if list(users) == same_seed else "; ".join(users)


def _counts_table(record: Record, title: str) -> Markup:
    most = max((n for counts in record.class_counts for n in counts), default=1) or 1
    rows = [
        [client, *(_bubble(n, most) for n in counts), f"{sum(counts):,}"]
        for client, counts in zip(record.clients, record.class_counts, strict=True)
    ]
    columns = ["client", *(f"class {k}" for k in range(len(record.class_counts[0]) if rows else 0)), "all"]
    caption = "Private samples of each client by class; the area of a disc is the number beside it"
    return table(caption, columns, rows, name=title, cls="bubbles")


def _bubble(n: int, most: int) -> Markup:
    if n <= 0:
        return element("span", "0", cls="none")
    disc = element("i", style=f"--d:{math.sqrt(n / most):.3f}", aria_hidden="true")
    return markup(disc, element("span", f"{n:,}"))


# what the clients answer


def output_matrices(overview: Overview) -> Markup:
    """Mean output probabilities of every client on samples of one class, where a run folder holds them."""
    parts = []
    for group in overview.groups:
        for record in group.records:
            for name, rows in record.output_matrices.items():
                title = f"{group.label}, seed {record.seed}: {name}"
                parts.append(_matrix(title, record, rows))
    if parts:
        return markup(*parts)
    text = "Not available: no run here has an analysis/output-matrix.json with its clients' mean outputs."
    return element("p", text)


def _matrix(title: str, record: Record, rows: Sequence[Sequence[float]]) -> Markup:
    names = record.clients if len(record.clients) == len(rows) else [f"client {n}" for n in range(len(rows))]
    columns = ["client", *(f"class {k}" for k in range(len(rows[0])))]
    body = [
        [client, *(element("span", f"{p:.2f}", style=f"--p:{p:.3f}") for p in row)]
        for client, row in zip(names, rows, strict=True)
    ]
    return table(f"Mean output probabilities. {title}", columns, body, name=title, cls="matrix")


# the wire


def wire(overview: Overview) -> Markup:
    rows = [_wire_row(overview, group) for group in overview.groups]
    columns: list[str | tuple[str, str]] = ["method", "black box", "to the server", "to the clients", "which reveals"]
    columns += [(UPLOADED.name, "per client"), (DOWNLOADED.name, "per client")]
    caption = "What each method sends; the wire refuses anything that is not listed here"
    note = element(
        "p",
        "B is the batch on public data, K the number of classes, d the width of the features. A black box keeps its "
        "parameters and its architecture. Types bound the channel, not the information in it: outputs on public data "
        "still say something about what a model was trained on.",
    )
    return markup(table(caption, columns, rows, name="What crossed the wire", cls="words stacked"), note)


def _wire_row(overview: Overview, group: Group) -> list[object]:
    clients = group.client_count or 1
    sent = [size(group.mean(m.key) / clients) if group.finals(m.key) else NONE for m in (UPLOADED, DOWNLOADED)]
    name = named(overview, group)
    if group.method not in methods.MODULES:
        unknown = "a method of somebody's own: what it declares is in its code, which is not read here"
        return [name, "not known", NONE, NONE, unknown, *sent]
    method = methods.get(group.method)
    black_box = "yes" if method.black_box else "no"
    return [name, black_box, _messages(method.up), _messages(method.down), in_words(method.reveals), *sent]


def _messages(kinds: Sequence[type[Message]]) -> str:
    """`Guidance: mean (B x K), grad (B x K)`"""
    words = []
    for kind in kinds:
        fields = [f"{name} ({' x '.join(axes)})" for name, axes in kind.layout.items()] or list(kind.payload_fields())
        words.append(f"{kind.__name__}: {', '.join(fields)}")
    return "; ".join(words) or "nothing"


# settings


def settings(overview: Overview) -> Markup:
    parts = [folded("Settings of all runs", _settings_table(overview.shared, "Settings that all runs share"))]
    for group in overview.groups:
        own = {key: value for key, value in group.settings.items() if key not in overview.shared}
        parts.append(folded(f"Settings of {group.label} alone", _settings_table(own, f"Settings of {group.label}")))
    parts.append(folded("Environment", environment(overview.records)))
    return markup(*parts)


def _settings_table(values: dict[str, object], caption: str) -> Markup:
    if not values:
        return element("p", "None.")
    return table(caption, ["setting", "value"], [[key, as_text(v)] for key, v in values.items()], name=caption)


def environment(records: Sequence[Record]) -> Markup:
    """What besides settings and seed decides bits; a value that differs between runs is listed with its runs."""
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for key, value in record.environment.items():
            if key != "clients":
                values[key][as_text(value)].append(record.name)
    if not values:
        return element("p", "No environment.json could be read.")
    rows = []
    for key, found in values.items():
        apart = [f"{value} ({', '.join(names)})" for value, names in found.items()]
        rows.append([key, next(iter(found)) if len(found) == 1 else "; ".join(apart)])
    return table("Software and machine of the runs", ["what", "value"], rows, name="Environment")


# meanings


def meanings(overview: Overview) -> Markup:
    rows = [[m.name, m.model, m.data, m.average, m.sentence] for m in ALL if recorded(overview, m)]
    columns = ["number", "model", "data", "average", "what it says"]
    return table("Every number of this page", columns, rows, name="Meaning of the numbers", cls="words stacked")
