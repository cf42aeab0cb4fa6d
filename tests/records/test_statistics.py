"""Claims about comparisons: differences paired over seeds, the way to a target, the spread of clients."""

import math

import pytest
from scipy import stats

from fedal.records.statistics import Reached, distribution, first_reaching, paired_difference

A = {0: 0.91, 1: 0.94, 2: 0.90, 3: 0.95}
B = {0: 0.90, 1: 0.91, 2: 0.90, 3: 0.92}


def test_the_paired_test_is_that_of_scipy() -> None:
    found = paired_difference(A, B)
    expected = stats.ttest_rel(list(A.values()), list(B.values()))
    interval = expected.confidence_interval(0.95)
    assert found is not None and found.low is not None and found.high is not None
    assert found.mean == pytest.approx(0.0175)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(expected.pvalue)


def test_only_seeds_that_both_have_are_compared() -> None:
    found = paired_difference({0: 0.5, 1: 0.6, 7: 0.0}, {0: 0.4, 1: 0.4, 8: 1.0})
    assert found is not None
    assert (found.seeds, found.mean) == (2, pytest.approx(0.15))
    assert paired_difference({0: 0.5}, {1: 0.5}) is None


def test_one_seed_allows_no_statement() -> None:
    found = paired_difference({0: 0.5}, {0: 0.4})
    assert found is not None
    assert (found.low, found.high, found.p_value) == (None, None, None)
    assert found.verdict == "no statement: one seed"


def test_differences_without_spread_allow_no_statement() -> None:
    found = paired_difference({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.6})
    assert found is not None
    assert found.p_value is None
    assert found.verdict.startswith("no statement")


def test_a_seed_that_is_not_a_number_is_left_out() -> None:
    found = paired_difference(A | {4: math.nan}, B | {4: 0.9})
    assert found == paired_difference(A, B)


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.2, "higher"), (-0.2, "lower"), (0.0, "not distinguishable")], ids=str
)
def test_the_verdict_follows_the_interval(shift: float, verdict: str) -> None:
    noise = {0: 0.01, 1: -0.01, 2: 0.005, 3: -0.005}
    found = paired_difference({seed: 0.5 + shift + n for seed, n in noise.items()}, dict.fromkeys(noise, 0.5))
    assert found is not None
    assert found.verdict == verdict


def row(iteration: int, accuracy: float, phase: str = "after_global") -> dict[str, object]:
    return {
        "iteration": iteration, "test_accuracy": accuracy, "phase": phase,
        "seconds": iteration / 10, "up_bytes": 100 * iteration,
    }  # fmt: skip


def test_the_target_is_reached_at_the_first_round_end_that_has_it() -> None:
    rows = [row(5, 0.9, "after_local"), row(5, 0.4), row(10, 0.6), row(15, 0.5), row(20, 0.7)]
    assert first_reaching(rows, 0.6) == Reached(10, 1.0, 1000)
    assert first_reaching(rows, 0.71) is None


def test_a_number_that_is_not_finite_reaches_no_target() -> None:
    assert first_reaching([row(5, math.nan)], 0.1) is None


def test_the_distribution_is_made_of_quartiles() -> None:
    found = distribution([0.4, 0.1, 0.2, 0.3, 0.5, math.nan])
    assert found is not None
    assert [found.low, found.quarter, found.median, found.three_quarters, found.high] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert distribution([math.nan]) is None
