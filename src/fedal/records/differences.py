"""Tests differences between runs: paired by seed, with p values corrected for the number of differences in a table.

A table that shows many differences finds some by chance. Holm's correction keeps the probability that any verdict of
the table is false below 5%, whatever the differences have in common, such as their baseline.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TypeVar

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
MAX_SEEDS = 1000  # more are not worth counting

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over the seeds that both have, with Student's interval and the p value of no difference.

    The interval covers this difference alone with 95%. `corrected` is the p value after Holm's correction over all
    differences of a table. All are None with fewer than two seeds or if all differences are equal.
    """

    seeds: int
    mean: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    corrected: float | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict, compare=False)

    @property
    def is_significant(self) -> bool:
        return self.corrected is not None and self.corrected < SIGNIFICANCE

    @property
    def verdict(self) -> str:
        """The conclusion that the corrected p value supports."""
        if self.corrected is None:
            return "no statement: one seed" if self.seeds == 1 else "no statement: all seeds differ by the same amount"
        if not self.is_significant:
            return "not distinguishable"
        return "higher" if self.mean > 0 else "lower"


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """Student's paired test of a against b, both seed -> value; None when they share no seed.

    Runs with one seed share the partition and the public set, so pairing removes the variance these cause. The p value
    is that of a single difference; `correct` adapts those of a table.
    """
    shared = sorted(seed for seed in a.keys() & b.keys() if math.isfinite(a[seed]) and math.isfinite(b[seed]))
    by_seed = {seed: a[seed] - b[seed] for seed in shared}
    n = len(by_seed)
    if n == 0:
        return None
    middle, limits = fmean(by_seed.values()), interval([*by_seed.values()])
    if limits is None:
        return Difference(n, middle, by_seed=by_seed)
    p_value = _p_value(n, middle, _standard_error([*by_seed.values()]))
    return Difference(n, middle, *limits, p_value, p_value, by_seed)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval that covers the mean of one value per seed with 95%; None if they do not vary."""
    error = _standard_error(values)
    if error < 1e-12:  # no variance to estimate, or only rounding
        return None
    middle, reach = fmean(values), _quantile(len(values), CONFIDENCE) * error
    return middle - reach, middle + reach


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _p_value(n: int, middle: float, error: float) -> float:
    from scipy.special import stdtr

    return 2 * float(stdtr(n - 1, -abs(middle) / error))


def _quantile(n: int, confidence: float) -> float:
    """Student's t for n seeds: a mean lies this many standard errors from the truth with at most that confidence."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.5 + confidence / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p values, in the same order.

    The k-th smallest of m is multiplied by m - k + 1. None becomes smaller than its predecessor, or larger than 1.
    """
    m, running = len(p_values), 0.0
    corrected = [0.0] * m
    for rank, index in enumerate(sorted(range(m), key=lambda index: p_values[index])):
        running = max(running, min(1.0, (m - rank) * p_values[index]))
        corrected[index] = running
    return corrected


def correct(shown: Mapping[Key, Difference]) -> dict[Key, Difference]:
    """All differences that a table shows, with corrected p values; those without a test do not count."""
    tested = {key: found.p_value for key, found in shown.items() if found.p_value is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {key: replace(found, corrected=corrected.get(key)) for key, found in shown.items()}


@dataclass(frozen=True)
class Shortfall:
    """What a table without a significant difference lacks, for the difference with the smallest p value."""

    name: str
    seeds: int
    mean: float
    needed: float  # the smallest mean that would be significant with as many seeds and the same standard deviation
    enough_seeds: int | None  # the fewest at which the same mean and standard deviation would be; None: > MAX_SEEDS


def shortfall(shown: Mapping[str, Difference]) -> Shortfall | None:
    """The shortfall of a table of corrected differences; None if one is significant or none was tested.

    It is a calculation with the observed mean and standard deviation, not a forecast: more seeds change both.
    """
    tested = {name: found for name, found in shown.items() if found.p_value is not None}
    if not tested or any(found.is_significant for found in tested.values()):
        return None
    name, closest = min(tested.items(), key=lambda item: float(item[1].p_value or 0.0))
    level = SIGNIFICANCE / len(tested)  # Holm compares the smallest p value with this
    n, deviation = closest.seeds, stdev(closest.by_seed.values())
    needed = _quantile(n, 1 - level) * deviation / math.sqrt(n)
    candidates = range(n + 1, MAX_SEEDS + 1)
    enough = (k for k in candidates if _p_value(k, closest.mean, deviation / math.sqrt(k)) < level)
    return Shortfall(name, n, closest.mean, needed, next(enough, None))
