"""Differences paired by seed: Student's test, Holm's correction, and what a table without a verdict lacks."""

import math
from statistics import stdev

import numpy as np
import pytest
from scipy import stats

from fedal.records.differences import MAX_SEEDS, Difference, correct, holm, paired_difference, shortfall
from fedal.records.numbers import shown_shortfall

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


def test_one_seed_supports_no_statement() -> None:
    found = paired_difference({0: 0.5}, {0: 0.4})
    assert found is not None
    assert (found.low, found.high, found.p_value) == (None, None, None)
    assert found.verdict == "no statement: one seed"


def test_equal_differences_support_no_statement() -> None:
    found = paired_difference({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.6})
    assert found is not None
    assert found.p_value is None
    assert found.verdict.startswith("no statement")


def test_a_seed_with_a_nan_is_left_out() -> None:
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


def test_holm_by_hand() -> None:
    """Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, of which the last rises to its predecessor's 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.03]) == [0.03]


def test_corrected_p_values_keep_their_order_and_are_at_most_one() -> None:
    rng = np.random.default_rng(0)
    for m in (1, 2, 7, 15):
        p = rng.random(m).tolist()
        corrected = holm(p)
        by_p = [corrected[index] for index in np.argsort(p)]
        assert by_p == sorted(by_p)
        assert all(0 <= before <= after <= 1 for before, after in zip(p, corrected, strict=True))
    assert holm([0.4, 0.5, 0.6]) == [1.0, 1.0, 1.0]


def difference(*values: float) -> Difference:
    found = paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    return found


def test_the_verdict_follows_the_corrected_p_value() -> None:
    """Alone, the difference has p = 0.034; as one of two tests it has 0.068. Its interval stays as it was."""
    clear, vague = difference(0.9, 1.1, 1.3), difference(-0.1, 0.0, 0.2)
    close = difference(0.08, 0.10, 0.125)
    alone = difference(0.10, 0.08, 0.15)
    assert alone.p_value == pytest.approx(0.0340, abs=1e-4) and alone.verdict == "higher"
    shown = correct({"alone": alone, "vague": vague, "one seed": difference(0.3)})
    assert shown["alone"].corrected == pytest.approx(2 * 0.0340, abs=2e-4), "one seed is no test and does not count"
    assert shown["alone"].verdict == "not distinguishable"
    assert (shown["alone"].low, shown["alone"].high) == (alone.low, alone.high)
    assert shown["one seed"].verdict == "no statement: one seed"
    assert [found.verdict for found in correct({1: clear, 2: close}).values()] == ["higher", "higher"]


def test_without_a_true_difference_few_tables_have_a_verdict() -> None:
    """16 methods, 3 seeds: with uncorrected intervals, almost half of all tables had a false verdict."""
    rng = np.random.default_rng(16)
    tables, false, uncorrected = 1000, 0, 0
    for _ in range(tables):
        partition = rng.normal(0.8, 0.05, 3)  # what all methods of a seed share
        methods = [dict(enumerate(partition + rng.normal(0, 0.01, 3))) for _ in range(16)]
        shown = {m: paired_difference(each, methods[0]) for m, each in enumerate(methods[1:])}
        found = {m: each for m, each in shown.items() if each is not None}
        uncorrected += any(each.verdict in ("higher", "lower") for each in found.values())
        false += any(each.verdict in ("higher", "lower") for each in correct(found).values())
    assert false / tables <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / tables)
    assert uncorrected / tables > 0.2, "the simulation can fail"


def test_what_a_table_without_a_verdict_lacks() -> None:
    shown = correct({"near": difference(0.10, 0.08, 0.15), "far": difference(-0.1, 0.0, 0.2)})
    lack = shortfall(shown)
    assert lack is not None and (lack.name, lack.seeds) == ("near", 3)
    deviation, middle = stdev([0.10, 0.08, 0.15]), 0.11
    assert lack.needed == pytest.approx(stats.t.ppf(1 - 0.025 / 2, 2) * deviation / math.sqrt(3))
    assert lack.needed > middle
    p = {k: 2 * stats.t.sf(middle * math.sqrt(k) / deviation, k - 1) for k in range(3, 9)}
    assert lack.enough_seeds == next(k for k in p if 2 * p[k] < 0.05) == 4
    words = shown_shortfall(shown)
    assert words == (
        "No difference has p (Holm) < 0.05 with 3 seeds: the closest, near (+0.1100), would have to be "
        f"{lack.needed:.4f} in size, or stay the same over 4 seeds."
    )


def test_a_mean_of_the_needed_size_is_significant() -> None:
    values = [0.10, 0.08, 0.15]
    lack = shortfall(correct({"a": difference(*values), "b": difference(-0.1, 0.0, 0.2)}))
    assert lack is not None
    for size, verdict in ((1.001, "higher"), (0.999, "not distinguishable")):
        moved = difference(*(value - lack.mean + size * lack.needed for value in values))
        assert correct({"a": moved, "b": difference(-0.1, 0.0, 0.2)})["a"].verdict == verdict


def test_a_table_lacks_nothing_if_one_difference_is_clear_and_says_so_with_one_seed() -> None:
    assert shortfall(correct({"a": difference(0.9, 1.0, 1.1), "b": difference(-0.1, 0.0, 0.2)})) is None
    assert shown_shortfall({}) == ""
    assert shown_shortfall({"a": difference(0.3)}).startswith("One seed allows no test")
    nothing = shortfall({"a": difference(-0.1, 0.0, 0.1001)})
    assert nothing is not None and nothing.enough_seeds is None
    assert f"more than {MAX_SEEDS} seeds" in shown_shortfall({"a": difference(-0.1, 0.0, 0.1001)})
