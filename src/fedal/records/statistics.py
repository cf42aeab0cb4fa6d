"""Rows of runs in a few numbers, and what a comparison may claim of them: every mean, spread, curve and test.

A mean and a spread are over seeds unless another word is said. Rows are those of metrics.jsonl, read by whomever.
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

Row = dict[str, Any]

CONFIDENCE = 0.95


def mean(values: Iterable[float]) -> float:
    """nan when there is none, or one that is not a number."""
    found = list(values)
    return fmean(found) if found else math.nan


def spread(values: Iterable[float]) -> float:
    """Standard deviation (n - 1); 0 where nothing can be said of one: a single value, or one that is not finite."""
    found = list(values)
    return stdev(found) if len(found) > 1 and all(map(math.isfinite, found)) else 0.0


def round_ends(rows: Iterable[Row], *, final: bool = True) -> list[Row]:
    """The evaluations at the end of a round; `final` says whether that of the finished models is among them."""
    return [row for row in rows if row["phase"] == "after_global" and (final or not row["final"])]


def final_row(rows: Sequence[Row]) -> Row | None:
    """The row that tables use: the finished models on the whole test set. None while the run goes on."""
    return next((row for row in reversed(rows) if row["final"]), None)


class Point(NamedTuple):
    """What several seeds had at one evaluation."""

    iteration: float
    seconds: float
    up_bytes: float
    mean: float
    low: float
    high: float
    seeds: int


def curve(runs: Iterable[Iterable[Row]], key: str) -> list[Point]:
    """One point per iteration at which a round's end has a finite `key`, over the runs that have it.

    `runs` are rows at the ends of rounds. Of two with one iteration the later counts: at the very end the final values.
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
    """Runs that differ only in their seed, taken together: one line of a table, one curve of a figure."""

    @property
    @abstractmethod
    def rows_by_seed(self) -> Mapping[int, Sequence[Row]]:
        """seed -> the rows of its run."""

    def finals(self, key: str) -> dict[int, float]:
        """seed -> the value in the final row, where there is one."""
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
        """Where each seed that got there first had the target."""
        found = [first_reaching(rows, target, key) for rows in self.rows_by_seed.values()]
        return [reached for reached in found if reached is not None]


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over the seeds that both have, with Student's interval and the p value of "there is none".

    Interval and p value need two seeds and differences that are not all alike; without these they are None.
    """

    seeds: int
    mean: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None

    @property
    def verdict(self) -> str:
        """What the numbers allow to say, in words."""
        if self.low is None or self.high is None:
            return "no statement: one seed" if self.seeds == 1 else "no statement: all seeds differ by the same"
        if self.low <= 0 <= self.high:
            return "not distinguishable"
        return "higher" if self.mean > 0 else "lower"


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """Student's paired test of a against b, both seed -> value; None when they share no seed.

    Runs of one seed share the division of the data and the public set, so pairing removes what these explain.
    """
    shared = sorted(seed for seed in a.keys() & b.keys() if math.isfinite(a[seed]) and math.isfinite(b[seed]))
    differences = [a[seed] - b[seed] for seed in shared]
    n = len(differences)
    if n == 0:
        return None
    middle = fmean(differences)
    error = stdev(differences) / math.sqrt(n) if n > 1 else 0.0
    if error < 1e-12:  # nothing to estimate a spread from, or only rounding
        return Difference(n, middle)
    from scipy.special import stdtr, stdtrit

    reach = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * error
    p_value = 2 * float(stdtr(n - 1, -abs(middle) / error))
    return Difference(n, middle, middle - reach, middle + reach, p_value)


@dataclass(frozen=True)
class Reached:
    """Where a run first was as good as asked: after how many iterations, seconds and uploaded bytes."""

    iteration: int
    seconds: float
    up_bytes: float


def first_reaching(rows: Iterable[Row], target: float, key: str = "test_accuracy") -> Reached | None:
    """The first evaluation at a round's end with at least `target`; None when there is none."""
    for row in round_ends(rows):
        if row.get(key, math.nan) >= target:
            return Reached(int(row["iteration"]), *(float(row.get(axis, math.nan)) for axis in ("seconds", "up_bytes")))
    return None


class Distribution(NamedTuple):
    """Five numbers that a box plot shows."""

    low: float
    quarter: float
    median: float
    three_quarters: float
    high: float


def distribution(values: Sequence[float]) -> Distribution | None:
    """Of the finite ones among the values; None when there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return Distribution(*(float(value) for value in np.quantile(finite, [0, 0.25, 0.5, 0.75, 1])))
