"""Groups of runs that differ only in their seed: each group is one line in every table and chart."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedal import methods
from fedal.config import Config
from fedal.data.partition import BY_OWNER
from fedal.facts import without_effect
from fedal.metrics.table import column, first_column
from fedal.records.differences import Difference, correct
from fedal.records.statistics import Row, Seeds
from fedal.report.collect import Collection, Record
from fedal.report.markup import Markup, element, markup
from fedal.report.measures import (
    CURVES,
    OWN,
    OWN_SPREAD,
    OWN_WORST,
    PARTICIPANTS,
    WORST,
    Measure,
    derive,
    observed,
)
from fedal.report.scored_measures import SCORED, compared_by


@dataclass
class Group(Seeds):
    """The runs of one method with one set of settings, one per seed."""

    method: str
    settings: dict[str, Any]  # flat, without the seed
    records: list[Record] = field(default_factory=list)
    label: str = ""

    @property
    def finished(self) -> list[Record]:
        return [record for record in self.records if record.is_complete]

    @property
    def client_count(self) -> int:
        """The number of clients; 0 if no run records it."""
        return max(
            (len(r.clients) or len({row.get("client") for row in r.client_rows}) for r in self.records), default=0
        )

    @property
    def rows_by_seed(self) -> dict[int, list[Row]]:
        return {record.seed: record.rows for record in self.records}


@dataclass
class Overview:
    """Everything the page shows."""

    groups: list[Group]
    shared: dict[str, Any]  # settings shared by all groups
    not_applicable: dict[str, str]
    problems: list[str]

    def __post_init__(self) -> None:
        """Chooses the measures to compare by: the runs' headline; a deployed federation has no global test set."""
        own = OWN, OWN_WORST, OWN_SPREAD
        headlines = {first_column(record.rows[0]) for record in self.records if record.rows and not record.is_server}
        shared = headlines.pop() if len(headlines) == 1 else column("accuracy")
        self.accuracy, self.worst, self.unevenness = own if self.only_servers else compared_by(shared)

    @property
    def records(self) -> list[Record]:
        return [record for group in self.groups for record in group.records]

    @cached_property
    def curves(self) -> list[Measure]:
        """The measures that charts may show: those that fedal knows, and the numbers that the methods observed."""
        others = [self.accuracy, self.worst] if self.accuracy not in CURVES else []
        curves = [measure for measure in CURVES if not (others and measure is WORST)]  # one worst client is enough
        scored = [measure for measure in SCORED if measure != self.accuracy and self.has(measure.key)]
        return [*others, *curves, *scored, *observed(self.records)]

    @property
    def best(self) -> Group | None:
        """The group with the best final mean."""
        finished = [group for group in self.groups if math.isfinite(group.mean(self.accuracy.key))]
        return max(finished, key=self.rank, default=None)

    def rank(self, group: Group) -> float:
        """A number that is larger for a better group."""
        value = group.mean(self.accuracy.key)
        return value if self.accuracy.higher_is_better else -value

    def named(self, group: Group) -> Markup:
        """The group's label, preceded by its swatch."""
        return markup(swatch(self.groups.index(group)), group.label)

    def differences(self, baseline: Group) -> dict[int, Difference]:
        """The differences of the other groups from the baseline, by place, corrected over all of them."""
        others = [None if group is baseline else group.difference(baseline, self.accuracy.key) for group in self.groups]
        return correct({place: found for place, found in enumerate(others) if found is not None})

    def has(self, key: str) -> bool:
        """Whether any run records this key."""
        return any(key in row for record in self.records for row in record.rows)

    def shows(self, measure: Measure) -> bool:
        """Whether the page shows a measure. Participants are shown only if a client missed a round."""
        return self.has(measure.key) and (measure is not PARTICIPANTS or self.has_absences)

    @property
    def has_absences(self) -> bool:
        return any(row.get("participated") == 0 for record in self.records for row in record.client_rows)

    @property
    def only_servers(self) -> bool:
        return all(record.is_server for record in self.records)

    @property
    def has_own_data(self) -> bool:
        """Whether every client brought its own data, so that no seed divides them."""
        return self.shared.get("partition") == BY_OWNER


def swatch(index: int) -> Markup:
    """A group's swatch: the same colour and dash in every table and chart."""
    return element("span", cls=f"swatch line-{index % 7} dash-{index // 7 % 4}", aria_hidden="true")


def overview(collection: Collection) -> Overview:
    """Groups the runs, gives the groups distinct labels, and notes differences that limit their comparison."""
    problems = list(collection.problems)
    groups: dict[tuple[str, str], Group] = {}
    for record in collection.records:
        derive(record)
        settings = flat(record.config)
        key = record.method, json.dumps(settings, sort_keys=True, default=str)
        group = groups.setdefault(key, Group(record.method, settings))
        problems += _add(group, record)
        problems += [f"{record.name}: {problem}" for problem in record.problems]
    order = {method: index for index, method in reversed(list(enumerate(collection.order)))}
    in_order = sorted(groups.values(), key=lambda group: order.get(group.method, len(order)))
    shared = _shared(in_order)
    _label(in_order)
    problems += _comparability_notes(in_order)
    missing = {name: why for name, why in collection.not_applicable.items() if name not in {g.method for g in in_order}}
    return Overview(in_order, shared, missing, problems)


def _add(group: Group, record: Record) -> list[str]:
    """Adds the record to its group; of two runs with the same seed, keeps the complete one."""
    twin = next((other for other in group.records if other.seed == record.seed), None)
    if twin is None:
        group.records.append(record)
        return []
    kept, dropped = (record, twin) if record.is_complete and not twin.is_complete else (twin, record)
    group.records[group.records.index(twin)] = kept
    return [f"{dropped.name} has the same settings and seed as {kept.name}; only the latter is shown."]


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Setting -> value, including the method's options, without settings that cannot change a result."""
    options = config.get("options")
    settings = {**config, **options} if isinstance(options, dict) else dict(config)
    ignored = {*without_effect(Config), "seed", "options"}
    method = str(config.get("method"))  # untrusted: may be anything
    if method in methods.MODULES:
        ignored |= {*without_effect(methods.get(method).options)}
    return {key: value for key, value in settings.items() if key not in ignored}


def _shared(groups: Sequence[Group]) -> dict[str, Any]:
    known = [group.settings for group in groups if group.settings]
    first = known[0] if known else {}
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in known)}


def _label(groups: Sequence[Group]) -> None:
    """Labels each group by its method and, if several groups share it, by the settings that differ."""
    for group in groups:
        twins = [other for other in groups if other.method == group.method]
        keys = dict.fromkeys(key for twin in twins for key in twin.settings)
        differing = [key for key in keys if len({json.dumps(t.settings.get(key), default=str) for t in twins}) > 1]
        words = [f"{key} {as_text(group.settings[key])}" for key in differing if key in group.settings]
        if len(twins) > 1 and not group.settings:
            words = ["settings unknown"]
        group.label = ", ".join([methods.shown(group.method), *words])


def _comparability_notes(groups: Sequence[Group]) -> list[str]:
    """Notes on settings, other than what defines the methods, that differ between groups."""
    known = [group for group in groups if group.settings]
    common = set.intersection(*(set(group.settings) for group in known)) - {"method"} if known else set()
    notes = []
    for key in (key for key in (known[0].settings if known else {}) if key in common):
        values: dict[str, list[str]] = defaultdict(list)
        for group in known:
            values[as_text(group.settings[key])].append(group.label)
        if len(values) > 1 and not all(_is_default_of_method(group, key) for group in known):
            each = "; ".join(f"{value} in {', '.join(labels)}" for value, labels in values.items())
            notes.append(f"Groups differ in {key}: {each}.")
    return notes


def _is_default_of_method(group: Group, key: str) -> bool:
    """Whether this is the value that the group's method sets by itself, such as `tau = 1` of fedeven."""
    if group.method not in methods.MODULES:
        return False
    option = methods.get(group.method).options.model_fields.get(key)
    return option is not None and option.get_default(call_default_factory=True) == group.settings[key]


def as_text(value: Any) -> str:
    """A setting's value in readable form."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str | int | float) for part in value):
        return ", ".join(map(str, value))
    return json.dumps(value, default=str)
