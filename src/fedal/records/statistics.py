"""Summarises the rows of runs: every mean, standard deviation and curve.

Means and standard deviations are over seeds unless stated otherwise. Rows are those of metrics.jsonl.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from fedal.records.differences import Difference, paired_difference

Row = dict[str, Any]


def mean(values: Iterable[float]) -> float:
    """The mean; nan if there are no values or one of them is nan."""
    found = list(values)
    return fmean(found) if found else math.nan


def spread(values: Iterable[float]) -> float:
    """The standard deviation (n - 1); 0 for a single value or if any value is non-finite."""
    found = list(values)
    return stdev(found) if len(found) > 1 and all(map(math.isfinite, found)) else 0.0


def round_ends(rows: Iterable[Row], *, final: bool = True) -> list[Row]:
    """The evaluations at the end of a round; `final` says whether to include the final row."""
    return [row for row in rows if row["phase"] == "after_global" and (final or not row["final"])]


def final_row(rows: Sequence[Row]) -> Row | None:
    """The final row, which tables use: the trained models on the whole test set. None until the run is complete."""
    return next((row for row in reversed(rows) if row["final"]), None)


class Point(NamedTuple):
    """One evaluation, summarised over seeds."""

    iteration: float
    seconds: float
    up_bytes: float
    mean: float
    low: float
    high: float
    seeds: int


def curve(runs: Iterable[Iterable[Row]], key: str) -> list[Point]:
    """One point per iteration at which a run has a finite `key`, over the runs that have it.

    `runs` holds rows at the ends of rounds. If a run has two rows for an iteration, the later counts: the final row.
    """
    rows: dict[float, dict[int, Row]] = defaultdict(dict)
    for index, run in enumerate(runs):
        for row in run:
            if math.isfinite(row.get(key, math.nan)):
                rows[row["iteration"]][index] = row
    return [_point(iteration, list(found.values()), key) for iteration, found in sorted(rows.items())]


def _point(iteration: float, rows: Sequence[Row], key: str) -> Point:
    values = [float(row[key]) for row in rows]
    seconds, sent = (fmean(row.get(axis, math.nan) for row in rows) for axis in ("seconds", "up_bytes"))
    return Point(iteration, seconds, sent, fmean(values), min(values), max(values), len(values))


class Seeds(ABC):
    """Runs that differ only in their seed: one line of a table, one curve of a figure."""

    @property
    @abstractmethod
    def rows_by_seed(self) -> Mapping[int, Sequence[Row]]:
        """seed -> the rows of its run."""

    def finals(self, key: str) -> dict[int, float]:
        """seed -> the value in the final row, for the seeds that have one."""
        found = {seed: final_row(rows) for seed, rows in self.rows_by_seed.items()}
        return {seed: float(row[key]) for seed, row in found.items() if row is not None and key in row}

    def mean(self, key: str) -> float:
        return mean(self.finals(key).values())

    def spread(self, key: str) -> float:
        return spread(self.finals(key).values())

    def difference(self, other: Seeds, key: str) -> Difference | None:
        return paired_difference(self.finals(key), other.finals(key))

    def curve(self, key: str) -> list[Point]:
        return curve(map(round_ends, self.rows_by_seed.values()), key)

    def reached(self, target: float, key: str = "test_accuracy") -> list[Reached]:
        """For each seed that reached the target, the point at which it first did so."""
        found = [first_reaching(rows, target, key) for rows in self.rows_by_seed.values()]
        return [reached for reached in found if reached is not None]


@dataclass(frozen=True)
class Reached:
    """The point at which a run first reached a target, in iterations, seconds and uploaded bytes."""

    iteration: int
    seconds: float
    up_bytes: float


def first_reaching(rows: Iterable[Row], target: float, key: str = "test_accuracy") -> Reached | None:
    """The first evaluation at the end of a round with at least `target`; None if there is none."""
    for row in round_ends(rows):
        if row.get(key, math.nan) >= target:
            return Reached(int(row["iteration"]), *(float(row.get(axis, math.nan)) for axis in ("seconds", "up_bytes")))
    return None


class Distribution(NamedTuple):
    """The five numbers of a box plot."""

    low: float
    quarter: float
    median: float
    three_quarters: float
    high: float


def distribution(values: Sequence[float]) -> Distribution | None:
    """The distribution of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return Distribution(*(float(value) for value in np.quantile(finite, [0, 0.25, 0.5, 0.75, 1])))
