"""The result: a headline that names the best, and the table of final models."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from fedal import methods
from fedal.records.numbers import NONE, count, duration, share, short, size, with_spread
from fedal.report import measures
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table
from fedal.report.measures import Measure
from fedal.report.scored_measures import SCORED

Cell = Callable[[Group], object]

MAX_ROUNDS = 10_000_000  # steps of longer runs are not counted: the number comes from an untrusted folder
WHOSE = {
    "clients": "each client's own",
    "server": "the server's",
    "groups": "one per group of clients with the same model",
}


def section(overview: Overview) -> Markup:
    return markup(_headline(overview), _final_table(overview))


def _headline(overview: Overview) -> Markup:
    """The best and the second. No test: a pair that was chosen by its results looks more different than it is."""
    best, accuracy = overview.best, overview.accuracy
    if best is None:
        return element("p", _nothing_to_compare(overview))
    seeds = len(best.finals(accuracy.key))
    best_word = "highest" if accuracy.higher_is_better else "lowest"
    first = element(
        "p",
        element("strong", best.label), f" has the {best_word} final {accuracy.name}: ",
        element("strong", with_spread(best.finals(accuracy.key).values())),
        f", mean over {_who_shares(overview, best)}", f" ± std over {seeds} seeds." if seeds > 1 else ", one seed.",
        cls="lead",
    )  # fmt: skip
    others = [g for g in overview.groups if g is not best and math.isfinite(g.mean(accuracy.key))]
    if not others:
        return first
    second = max(others, key=overview.rank)
    reached = with_spread(second.finals(accuracy.key).values())
    tests = "Section Differences tests differences from a baseline."
    return markup(first, element("p", f"Second is {second.label}: {reached}. {tests}"))


def _nothing_to_compare(overview: Overview) -> str:
    if not any(group.finished for group in overview.groups):
        return "No run is complete yet, so there are no final numbers. The curves show the progress so far."
    if overview.only_servers:
        return "No site shares its accuracy (fedal join --share-metrics), so there are no accuracies to show."
    return "No finished run has a finite final accuracy."


def _who_shares(overview: Overview, group: Group) -> str:
    """`10 clients`; of a deployed federation, those that share their accuracy: `2 of 3 sites`."""
    if not overview.only_servers:
        return f"{group.client_count} clients"
    rows, key = [row for record in group.finished for row in record.final_clients], overview.accuracy.key
    return f"{len({row.get('client') for row in rows if key in row})} of {group.client_count} sites"


def _final_table(overview: Overview) -> Markup:
    columns = _columns(overview)
    rows = [[overview.named(group), *_cells(overview, group, list(columns.values()))] for group in overview.groups]
    where = "on the test data of their own sites" if overview.only_servers else "on the whole global test set"
    caption = f"Final models {where}: the last evaluation, not the best one. Whose model: {_whose_models(overview)}."
    missing = [element("p", f"{name} is not applicable: {why}") for name, why in overview.not_applicable.items()]
    inner = table(caption, ["method", "seeds", *columns], rows, name="Results", cls="numbers stacked")
    return markup(inner, *missing)


def _columns(overview: Overview) -> dict[str | tuple[str, str], Cell]:
    """Heading -> function that returns the cell of a group with finished runs."""

    def value(measure: Measure) -> Cell:
        return lambda group: _value(group, measure)

    def per_client(measure: Measure) -> Cell:
        return lambda group: size(group.mean(measure.key) / (group.client_count or 1))

    own = () if overview.only_servers else (measures.OWN, measures.OWN_WORST)
    checks = (measures.VALIDATION, measures.OWN_VALIDATION)
    scored = [measure for measure in overview.curves if measure in SCORED and measure != overview.accuracy]
    plain = [] if overview.only_servers or overview.accuracy is measures.ACCURACY else [measures.ACCURACY]
    others = (
        *plain,
        *scored,
        *own,
        *checks,
        measures.SERVER,
        measures.DISAGREEMENT,
        measures.DISCRIMINATOR,
        measures.ADVERSARIAL,
    )
    return {
        (overview.accuracy.name, "mean ± std over seeds"): lambda group: _accuracy(group, overview.accuracy),
        (overview.worst.name, "mean over seeds"): value(overview.worst),
        (overview.unevenness.name, "standard deviation"): value(overview.unevenness),
        "iterations": lambda group: count(group.mean("iteration")),
        ("steps", "per client"): _steps,
        (measures.UPLOADED.name, "per client"): per_client(measures.UPLOADED),
        (measures.DOWNLOADED.name, "per client"): per_client(measures.DOWNLOADED),
        measures.TIME.name: lambda group: duration(group.mean(measures.TIME.key)),
        **{measure.name: value(measure) for measure in others if overview.has(measure.key)},
    }


def _steps(group: Group) -> str:
    """Optimizer steps per client, as far as fedal knows the method; the folder's code is not read."""
    config, rounds = group.finished[0].config, group.mean("round")
    options = config.get("options", {})
    if group.method not in methods.MODULES or not isinstance(options, dict) or not 0 <= rounds <= MAX_ROUNDS:
        return NONE
    method = methods.get(group.method)
    try:
        return count(method.steps(method.options(**options), round(rounds)))
    except (ValidationError, TypeError):  # the folder is untrusted
        return NONE


def _whose_models(overview: Overview) -> str:
    """`each client's own`, or the methods with each kind of model if they differ."""
    whose: dict[str, list[str]] = defaultdict(list)
    for group in overview.groups:
        known = group.method in methods.MODULES
        whose[WHOSE[methods.get(group.method).evaluates] if known else "not known"].append(group.label)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{words} ({', '.join(labels)})" for words, labels in whose.items())


def _cells(overview: Overview, group: Group, columns: Sequence[Cell]) -> list[object]:
    done, planned = len(group.finished), len(group.records)
    seeds = str(done) if done == planned else f"{done} of {planned}"
    if done:
        return [seeds, *(cell(group) for cell in columns)]
    curve = group.curve(overview.accuracy.key)
    last = f"so far {curve[-1].mean:.4f} at iteration {curve[-1].iteration:g}" if curve else "nothing recorded"
    return [seeds, last, *[NONE] * (len(columns) - 1)]


def _accuracy(group: Group, measure: Measure) -> object:
    found = group.finals(measure.key).values()
    return element("strong", with_spread(found)) if found else NONE


def _value(group: Group, measure: Measure) -> object:
    if not group.finals(measure.key):
        return NONE
    value = group.mean(measure.key)
    if measure is measures.DISCRIMINATOR and group.client_count:
        return markup(share(value, 3), " ", element("small", f"chance {1 / group.client_count:.3f}"))
    return short(value) if measure.unit == "number" else share(value)
