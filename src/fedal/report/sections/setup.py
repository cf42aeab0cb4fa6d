"""What was run, in a few lines, and all settings, software and machines in detail."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fedal.records.numbers import share
from fedal.records.statistics import mean
from fedal.report.collect import Record
from fedal.report.groups import Overview, as_text
from fedal.report.markup import Markup, definitions, element, folded, markup, table


def what_was_run(overview: Overview) -> Markup:
    def setting(key: str) -> str:
        if not any(key in group.settings for group in overview.groups):
            return "(not known)"
        return as_text(overview.shared[key]) if key in overview.shared else "(differs: see Settings)"

    done, planned = sum(record.is_complete for record in overview.records), len(overview.records)
    seeds = sorted({record.seed for record in overview.records})
    sources = {str(r.environment["data"]) for r in overview.records if "data" in r.environment}
    clients = sorted({group.client_count for group in overview.groups} - {0})
    own_data = overview.only_servers or overview.has_own_data
    drawn = f"{setting('partition')}, alpha {setting('alpha')} (smaller is more skewed)"
    partition = "none: every site has its own data" if own_data else drawn
    public = overview.shared.get("public")
    effective = [found for record in overview.records if (found := record.effective_classes) is not None]
    partition += f", {share(mean(effective), 2)} effective classes per client" if effective else ""
    return definitions(
        [
            ("methods", ", ".join(group.label for group in overview.groups)),
            ("runs", f"{planned}, {'all' if done == planned else done} complete; seeds {', '.join(map(str, seeds))}"),
            ("dataset", "; ".join(sorted(sources)) or setting("dataset")),
            ("clients", f"{' or '.join(map(str, clients)) or 'not known'}; models: {_models(overview.records)}"),
            ("partition", partition),
            (
                "public set",
                f"unlabelled samples of {public}" if public else f"{setting('public_size')} unlabelled samples",
            ),
            ("length", f"{setting('iterations')} iterations; tau {setting('tau')} iterations per stage"),
            ("training", f"{setting('optimizer')}, lr {setting('lr')}, batches of {setting('batch_size')}"),
        ]
    )


def _models(records: Sequence[Record]) -> str:
    """The number of clients per model, in the first run that records it."""
    if all(record.is_server for record in records):
        return "known only to the sites"
    for record in records:
        found = record.environment.get("clients")
        if isinstance(found, dict) and found:
            return ", ".join(f"{n} {name}" for name, n in Counter(map(str, found.values())).items())
    return "not known"


def settings(overview: Overview) -> Markup:
    parts = [folded("Settings of all runs", _settings_table(overview.shared, "Settings that all runs share"))]
    for group in overview.groups:
        own = {key: value for key, value in group.settings.items() if key not in overview.shared}
        parts.append(folded(f"Settings of {group.label} only", _settings_table(own, f"Settings of {group.label}")))
    parts.append(folded("Environment", _environment(overview.records)))
    return markup(*parts)


def _settings_table(values: dict[str, object], caption: str) -> Markup:
    if not values:
        return element("p", "None.")
    return table(caption, ["setting", "value"], [[key, as_text(v)] for key, v in values.items()], name=caption)


def _environment(records: Sequence[Record]) -> Markup:
    """Software and hardware, which also affect the bits; a value that differs between runs is listed with its runs."""
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
    return table("Software and machine of the runs", ["item", "value"], rows, name="Environment")
