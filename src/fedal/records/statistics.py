"""What a comparison may claim: differences paired over seeds, the way to a target, how clients are spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

CONFIDENCE = 0.95


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
    mean = fmean(differences)
    error = stdev(differences) / math.sqrt(n) if n > 1 else 0.0
    if error < 1e-12:  # nothing to estimate a spread from, or only rounding
        return Difference(n, mean)
    from scipy.special import stdtr, stdtrit

    reach = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * error
    p_value = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return Difference(n, mean, mean - reach, mean + reach, p_value)


@dataclass(frozen=True)
class Reached:
    """Where a run first was as good as asked: after how many iterations, seconds and uploaded bytes."""

    iteration: int
    seconds: float
    up_bytes: float


def first_reaching(rows: Iterable[Mapping[str, Any]], target: float) -> Reached | None:
    """The first evaluation at a round's end with a test accuracy of at least `target`; None when there is none."""
    for row in rows:
        if row["phase"] == "after_global" and row["test_accuracy"] >= target:
            return Reached(int(row["iteration"]), float(row["seconds"]), float(row["up_bytes"]))
    return None


@dataclass(frozen=True)
class Distribution:
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
