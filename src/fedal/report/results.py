"""The sections with results: the table, curves, the way to a target, differences, clients, the discriminator."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from fedal import methods
from fedal.records.numbers import (
    NONE,
    count,
    duration,
    p_value,
    share,
    short,
    shown_difference,
    signed,
    size,
    with_spread,
)
from fedal.records.statistics import Difference, Point, Row, distribution
from fedal.report.collect import Record
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, definitions, element, folded, markup, table
from fedal.report.measures import (
    ACCURACY,
    ADVERSARIAL,
    CURVES,
    DISAGREEMENT,
    DISCRIMINATOR,
    DOWNLOADED,
    SERVER,
    SPREAD,
    TIME,
    UPLOADED,
    WORST,
    Measure,
)

TARGETS = [percent / 100 for percent in range(1, 101)]
WHOSE = {"clients": "each client's own", "server": "the server's", "groups": "one per group of equal models"}


def swatch(index: int) -> Markup:
    """The colour and dash of a group's line."""
    return element("span", cls=f"swatch line-{index % 7} dash-{index // 7 % 4}", aria_hidden="true")


def named(overview: Overview, group: Group) -> Markup:
    return markup(swatch(overview.groups.index(group)), group.label)


# the table


def headline(overview: Overview) -> Markup:
    """The result in two sentences, with what the seeds allow to claim."""
    best = overview.best
    if best is None:
        return element("p", "No run is complete yet, so there are no final numbers; the curves show how far it got.")
    seeds = len(best.finals(ACCURACY.key))
    first = element(
        "p",
        element("strong", best.label), " has the highest final test accuracy: ",
        element("strong", with_spread(best.finals(ACCURACY.key).values())),
        f", mean over {best.client_count} clients", f" ± spread over {seeds} seeds." if seeds > 1 else ", one seed.",
        cls="lead",
    )  # fmt: skip
    others = [g for g in overview.groups if g is not best and math.isfinite(g.mean(ACCURACY.key))]
    if not others:
        return first
    second = max(others, key=lambda group: group.mean(ACCURACY.key))
    found = overview.difference(best, second)
    if found is None:
        return markup(first, element("p", f"It shares no seed with the next, {second.label}."))
    return markup(first, element("p", f"Next is {second.label}. {_in_words(found)}"))


def _in_words(found: Difference) -> str:
    words = f"The difference, paired over {found.seeds} seed{'s' * (found.seeds > 1)}, is {signed(found.mean)}"
    if found.low is None or found.high is None:
        return f"{words}; {found.verdict}."
    interval = f"95% interval {signed(found.low)} to {signed(found.high)}, p {p_value(found.p_value, equals='= ')}"
    claim = "the two cannot be told apart" if found.low <= 0 <= found.high else "the interval excludes 0"
    caution = " Two seeds hardly tell how large the spread is." * (found.seeds == 2)
    return f"{words} ({interval}): {claim} with these seeds.{caution}"


def final_table(overview: Overview) -> Markup:
    optional = [m for m in (SERVER, DISAGREEMENT, DISCRIMINATOR, ADVERSARIAL) if recorded(overview, m)]
    columns: list[str | tuple[str, str]] = ["method", "seeds", (ACCURACY.name, "mean ± spread of seeds")]
    columns += [(WORST.name, "mean of seeds"), (SPREAD.name, "standard deviation"), "iterations"]
    columns += [(UPLOADED.name, "per client"), (DOWNLOADED.name, "per client"), TIME.name]
    columns += [measure.name for measure in optional]
    rows = [_final_row(overview, group, optional) for group in overview.groups]
    caption = (
        "Final models on the whole global test set: not the best evaluation on the way but the last one. "
        f"Whose model: {_whose_models(overview)}."
    )
    missing = [element("p", f"{name} is not applicable: {why}") for name, why in overview.not_applicable.items()]
    return markup(table(caption, columns, rows, name="Results", cls="numbers stacked"), *missing)


def _whose_models(overview: Overview) -> str:
    """`each client's own`, or which methods have which where they differ."""
    whose: dict[str, list[str]] = defaultdict(list)
    for group in overview.groups:
        known = group.method in methods.MODULES
        whose[WHOSE[methods.get(group.method).evaluates] if known else "not known"].append(group.label)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{words} ({', '.join(labels)})" for words, labels in whose.items())


def recorded(overview: Overview, measure: Measure) -> bool:
    return any(measure.key in row for record in overview.records for row in record.rows)


def _final_row(overview: Overview, group: Group, optional: Sequence[Measure]) -> list[object]:
    name = named(overview, group)
    done, planned = len(group.finished), len(group.records)
    seeds = str(done) if done == planned else f"{done} of {planned}"
    if not done:
        curve = group.curve(ACCURACY.key)
        last = f"so far {curve[-1].mean:.4f} at iteration {curve[-1].iteration:g}" if curve else "nothing recorded"
        return [name, seeds, last, *[NONE] * (6 + len(optional))]
    clients = group.client_count or 1
    return [
        name, seeds,
        element("strong", with_spread(group.finals(ACCURACY.key).values())),
        share(group.mean(WORST.key)), share(group.mean(SPREAD.key)), count(group.mean("iteration")),
        size(group.mean(UPLOADED.key) / clients), size(group.mean(DOWNLOADED.key) / clients),
        duration(group.mean(TIME.key)), *(_optional(group, measure) for measure in optional),
    ]  # fmt: skip


def _optional(group: Group, measure: Measure) -> object:
    if not group.finals(measure.key):
        return NONE
    value = group.mean(measure.key)
    if measure is DISCRIMINATOR and group.client_count:
        return markup(share(value, 3), " ", element("small", f"chance {1 / group.client_count:.3f}"))
    return share(value) if measure.unit == "share" else short(value)


# curves


def curves(overview: Overview) -> Markup:
    shown = [measure for measure in CURVES if any(group.curve(measure.key) for group in overview.groups)]
    if not shown:
        return element("p", "No evaluation is recorded yet.")
    return element("div", *(_chart(overview, measure, wide=measure is ACCURACY) for measure in shown), cls="charts")


def _chart(overview: Overview, measure: Measure, *, wide: bool) -> Markup:
    plot = element("div", cls="plot", data_measure=measure.key)
    caption = element(
        "figcaption", element("h3", measure.name[0].upper() + measure.name[1:]), element("p", measure.sentence)
    )
    return element("figure", caption, plot, _curve_table(overview, measure), cls="chart wide" if wide else "chart")


def _curve_table(overview: Overview, measure: Measure) -> Markup:
    """The same numbers for those who do not see the curves."""
    points = {group.label: {point.iteration: point for point in group.curve(measure.key)} for group in overview.groups}
    points = {label: found for label, found in points.items() if found}
    rows = []
    for iteration in sorted({iteration for found in points.values() for iteration in found}):
        cells = [found.get(iteration) for found in points.values()]
        rows.append([f"{iteration:g}", *(NONE if cell is None else _show_point(cell) for cell in cells)])
    caption = f"{measure.name}: mean over seeds (lowest to highest seed) after so many iterations"
    return folded("These numbers as a table", table(caption, ["iterations", *points], rows, name=measure.name))


def _show_point(point: Point) -> str:
    return f"{point.mean:.4g}" + f" ({point.low:.4g} to {point.high:.4g})" * (point.seeds > 1)


# the way to a target


def default_target(overview: Overview) -> int:
    """In percent: 95 % of what the best one reaches."""
    best = overview.best
    return max(1, math.floor(95 * best.mean(ACCURACY.key))) if best else 50


def target_rows(overview: Overview) -> list[list[list[str]]]:
    """For every target of `TARGETS` the cells of the table, group by group."""
    return [[_target_row(group, target) for group in overview.groups] for target in TARGETS]


def _target_row(group: Group, target: float) -> list[str]:
    reached = group.reached(target)
    seeds = f"{len(reached)} of {len(group.records)}"
    if not reached:
        return [seeds, "not reached", NONE, NONE]
    sent = fmean(r.up_bytes for r in reached) / (group.client_count or 1)
    time = duration(fmean(r.seconds for r in reached))
    return [seeds, count(fmean(r.iteration for r in reached)), time, size(sent)]


def target_table(overview: Overview) -> Markup:
    rows = target_rows(overview)[default_target(overview) - 1]
    columns: list[str | tuple[str, str]] = ["method", "seeds that reach it", "iterations", TIME.name]
    columns.append((UPLOADED.name, "per client"))
    body = [[named(overview, group), *cells] for group, cells in zip(overview.groups, rows, strict=True)]
    caption = "First evaluation with at least the target accuracy, mean over the seeds that reach it"
    return table(caption, columns, body, name="Time and bytes to the target", id="target-table", cls="numbers stacked")


# differences


def difference_rows(overview: Overview) -> list[list[list[str]]]:
    """For every group as the baseline the cells of the table, group by group."""
    return [[_difference_row(overview, group, base) for group in overview.groups] for base in overview.groups]


def _difference_row(overview: Overview, group: Group, baseline: Group) -> list[str]:
    found = None if group is baseline else overview.difference(group, baseline)
    if found is None:
        return [NONE, NONE, NONE, NONE, "the baseline" if group is baseline else "no seed in common"]
    return [str(found.seeds), *shown_difference(found)]


def difference_table(overview: Overview) -> Markup:
    rows = difference_rows(overview)[0]
    columns = ["method", "seeds in common", "mean difference", "95% interval", "p", "the method is"]
    body = [[named(overview, group), *cells] for group, cells in zip(overview.groups, rows, strict=True)]
    caption = "Difference of the final test accuracy to the baseline, seed by seed (Student's paired test)"
    return table(caption, columns, body, name="Paired differences", id="difference-table", cls="numbers stacked")


# clients


def client_values(group: Group) -> list[tuple[float, str]]:
    """Final accuracy and name of every client of every seed."""
    return [(row["test_accuracy"], _client_name(record, row)) for record in group.finished for row in _finals(record)]


def _finals(record: Record) -> list[Row]:
    return [row for row in record.final_clients if math.isfinite(row["test_accuracy"])]


def _client_name(record: Record, row: Row) -> str:
    return f"{row.get('client', 'unnamed')}, seed {record.seed}"


def client_table(overview: Overview) -> Markup:
    rows = []
    for group in overview.groups:
        values = client_values(group)
        found = distribution([value for value, _ in values])
        if found is None:
            rows.append([named(overview, group), *[NONE] * 6])
            continue
        five = [found.low, found.quarter, found.median, found.three_quarters, found.high]
        rows.append([named(overview, group), *(share(value, 3) for value in five), _worst(group)])
    caption = "Final test accuracy of single clients, all seeds together"
    columns = ["method", "lowest", "quarter", "median", "three quarters", "highest", "the lowest is"]
    return table(caption, columns, rows, name="Clients", cls="numbers stacked")


def _worst(group: Group) -> str:
    record, row = min(
        ((record, row) for record in group.finished for row in _finals(record)),
        key=lambda found: found[1]["test_accuracy"],
    )
    samples = row.get("private_samples", math.nan)
    has = f", {samples:.0f} private samples" if isinstance(samples, float) and math.isfinite(samples) else ""
    return f"{_client_name(record, row)} ({row.get('model', 'model unknown')}{has})"


# the discriminator


def discriminator(overview: Overview) -> Markup:
    """What FedAL's numbers rest on: is there a discriminator that pulls?"""
    found = [group for group in overview.groups if group.finals(DISCRIMINATOR.key)]
    if not found:
        return element("p", "No finished run here has a discriminator.")
    return definitions((named(overview, group), _pull(group)) for group in found)


def _pull(group: Group) -> str:
    accuracy, norm = group.mean(DISCRIMINATOR.key), group.mean(ADVERSARIAL.key)
    chance = 1 / group.client_count if group.client_count else math.nan
    words = f"Discriminator accuracy {share(accuracy, 3)} (chance {chance:.3f}), adversarial gradient {short(norm)}. "
    if accuracy < 1.5 * chance and norm < 0.02:
        words += (
            "It guesses and hardly pulls: what this method reached, it reached without much help of the adversarial "
            "term. A higher discriminator_lr makes it learn faster."
        )
    elif accuracy < 1.5 * chance:
        words += "It guesses, but it pulls: the clients' answers have become hard to tell apart."
    else:
        words += "It tells the clients apart, so the adversarial term carries information."
    found = {record.seed: record.analysis.get("equilibrium") for record in group.records}
    verdicts = {seed: part["verdict"] for seed, part in found.items() if isinstance(part, dict) and "verdict" in part}
    return words + "".join(f" Seed {seed}, by fedal analyse: {verdict}." for seed, verdict in verdicts.items())
