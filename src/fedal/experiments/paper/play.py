"""Plays an entry of the paper: one comparison per column, all runs in one place, then the lines of its table.

Runs lie in `OUT/SCALE/SETTINGS/METHOD/seed-S`, named by their settings: entries that need the same run share it, and an
entry that was interrupted continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedal import data as data_sources
from fedal import methods as known_methods
from fedal.config import Config
from fedal.data.check import check
from fedal.errors import Stopped
from fedal.experiments.compare import Row, Watcher, compare
from fedal.experiments.paper.entries import (
    FIGURE_ONLY,
    FULL_SEEDS,
    MINIATURE_OPTIONS,
    MINIATURES,
    STAND_IN,
    Column,
    Entry,
    Number,
    full_settings,
    small_settings,
)
from fedal.runs import Run, RunFolder

Scale = Literal["small", "full"]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One line of the table: ours beside the paper's. Without values, `reason` says why."""

    setting: str
    what: str  # a method, a loss, a division of data
    config: str
    folder: str  # of its runs, seen from the table
    values: tuple[float, ...] = ()  # one per seed
    paper: Number | str = FIGURE_ONLY
    reason: str = ""

    @property
    def ours(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or isinstance(self.paper, str) else self.ours - self.paper[0]


@dataclass
class Outcome:
    """What an entry came to: the lines of its table, and what its figure is drawn from."""

    entry: Entry
    scale: Scale
    data: str  # what was played on, in words
    quantity: str
    folder: Path  # of table and figure
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)  # column -> the comparison's rows
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # column -> clients x classes
    matrices: dict[tuple[str, str], Matrix] = field(default_factory=dict)  # column, method -> clients x classes

    @property
    def title(self) -> str:
        size = "the paper's scale" if self.scale == "full" else "a miniature, not the paper's setting"
        return f"{self.entry.name} ({self.entry.label}): {self.entry.title}. {size}, on {self.data}"


def play(
    entry: Entry,
    scale: Scale,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 0,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Plays or completes all runs of an entry. A data set or method that is missing becomes a reason in the lines."""
    from fedal.experiments.paper import measures

    dataset, words, problem = _choose_data(entry, scale)
    outcome = Outcome(entry, scale, words, measures.QUANTITIES.get(entry.kind, "test accuracy"), out / scale)
    outcome.notes += entry.notes
    if scale == "small":
        outcome.notes += _what_small_means(entry, dataset)
    n_seeds = seeds or (FULL_SEEDS if scale == "full" else MINIATURES[dataset].seeds)
    for column in entry.columns:
        settings = full_settings(entry, column) if scale == "full" else small_settings(entry, column, dataset)
        if problem:
            outcome.lines += _missing(entry, column, settings, problem)
        elif entry.kind == "data":
            measures.divide(outcome, column, settings, n_seeds)
        else:
            _compare(outcome, column, settings, n_seeds, jobs, watch, should_stop)
    return outcome


def minutes(entry: Entry, dataset: str, cores: int = 2) -> float:
    """About how long the miniature takes, from the measured time of a run."""
    if entry.kind == "data":
        return 1.0
    miniature = MINIATURES[dataset]
    return len(entry.methods) * len(entry.columns) * miniature.seeds * miniature.run_s / cores / 60


def _choose_data(entry: Entry, scale: Scale) -> tuple[str, str, str]:
    """The data set to play on, how it is called, and what is missing."""
    name = entry.dataset
    report = check(name) if data_sources.is_installed(name) else None
    if report is not None and report.ok:
        return name, name, ""
    if report is not None and scale == "small" and "accept_unverified" in MINIATURES[name].settings:
        return name, f"{name} (files that are not the publisher's, such as SVHN-40k restored)", ""
    type_this = f"`{data_sources.describe(name).fetch_command(None)}`"
    if scale == "full":
        state = "is not installed" if report is None else "has files that are not the publisher's"
        return name, name, f"{name} {state}: type {type_this}"
    return STAND_IN, f"{STAND_IN} in place of {name}, which is not installed ({type_this})", ""


def _what_small_means(entry: Entry, dataset: str) -> list[str]:
    miniature, shown = MINIATURES[dataset], dict(MINIATURES[dataset].settings)
    if entry.kind != "data":
        shown["|P|"] = f"{miniature.public_share:g} x the paper's"
        shown |= {key: value for key, value in MINIATURE_OPTIONS.items() if _has_option(entry, key)}
    words = ", ".join(f"{key} {value}" for key, value in shown.items())
    return [
        f"small: {words}{'; ' * bool(miniature.words)}{miniature.words}. The difference to the paper's number is that "
        "between two settings; look at the order of the methods"
    ]


def _missing(entry: Entry, column: Column, settings: Mapping[str, Any], reason: str) -> list[Line]:
    return [
        Line(column.name, what, _words(settings), "", paper=column.paper.get(what, FIGURE_ONLY), reason=reason)
        for what in (column.paper if entry.kind == "variances" else entry.methods)
    ]


def _compare(
    outcome: Outcome,
    column: Column,
    settings: dict[str, Any],
    seeds: int,
    jobs: int,
    watch: Watcher,
    should_stop: Callable[[], bool],
) -> None:
    from fedal.experiments.paper import measures

    entry = outcome.entry
    path = outcome.folder / _folder_name(settings)
    options = {}
    if outcome.scale == "small":
        options = {key: value for key, value in MINIATURE_OPTIONS.items() if _has_option(entry, key)}
    there = [name for name in entry.methods if name in known_methods.names()]
    for name in entry.methods:
        if name not in there:
            outcome.lines.append(
                Line(column.name, name, _words(settings), "", (), column.paper.get(name, FIGURE_ONLY), "not installed")
            )
    try:
        found = compare(there, seeds, path, {**settings, **options}, jobs=jobs, watch=watch, should_stop=should_stop)
    except Stopped:
        raise Stopped("stopped; what is finished is kept. Type the same command again to continue.") from None
    outcome.rows[column.name] = found.rows
    outcome.notes += [note for note in found.notes if note not in outcome.notes]
    for row in found.rows:
        measures.measure(outcome, column, row, path.name)


def _has_option(entry: Entry, option: str) -> bool:
    return any(
        option in known_methods.get(name).options.model_fields for name in entry.methods if name in known_methods.names()
    )


def _folder_name(settings: Mapping[str, Any]) -> str:
    """Names everything that differs between the runs of a scale."""
    models = settings.get("models", "auto")
    parts = [settings["dataset"], "same" if models == "same" else "", f"alpha-{settings.get('alpha', 1.0):g}"]
    parts += [f"clients-{settings['clients']}", f"public-{settings['public_size']}"]
    parts += [f"iterations-{settings['iterations']}", *settings.get("instruments", ())]
    return "-".join(part for part in parts if part)


def _words(settings: Mapping[str, Any], run: Run | None = None) -> str:
    """The configuration of a line, as short as it can be read."""
    config = run.config if run else Config(**{**settings, "method": "fedal"})
    skew = "" if config.partition == "by-user" else f" {config.alpha:g}"
    models = "" if config.models == "auto" else f", {config.models if config.models == 'same' else 'own'} models"
    tau = f", tau {config.tau}" if run else ""
    return (
        f"{config.dataset}, {len(config.client_names)} clients, {config.partition}{skew}{models}, "
        f"|P| {config.public_size}, {config.total_rounds * config.tau} iterations{tau}"
    )


def line_of(column: Column, what: str, run: Run, folder: str, values: Sequence[float]) -> Line:
    """A line with numbers, its configuration read from the run."""
    paper = column.paper.get(what, FIGURE_ONLY)
    return Line(column.name, what, _words({}, run), folder, tuple(values), paper)


def line_without(column: Column, what: str, folder: Path, reason: str) -> Line:
    config = ""
    if RunFolder(folder).config.exists():
        config = _words({}, Run(folder, trust=True))
    return Line(column.name, what, config, "", (), column.paper.get(what, FIGURE_ONLY), reason)
