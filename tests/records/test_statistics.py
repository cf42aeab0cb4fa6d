"""Statistics of runs: curves, time to a target, distribution over clients."""

import math

import pytest

from fedal.records.statistics import (
    Reached,
    Row,
    Seeds,
    curve,
    distribution,
    final_row,
    first_reaching,
    mean,
    round_ends,
    spread,
)


def row(iteration: int, accuracy: float, phase: str = "after_global", *, final: bool = False) -> Row:
    return {
        "iteration": iteration, "test_accuracy": accuracy, "phase": phase, "final": final,
        "seconds": iteration / 10, "up_bytes": 100 * iteration,
    }  # fmt: skip


def test_the_target_is_reached_at_the_first_round_end_that_has_it() -> None:
    rows = [row(5, 0.9, "after_local"), row(5, 0.4), row(10, 0.6), row(15, 0.5), row(20, 0.7)]
    assert first_reaching(rows, 0.6) == Reached(10, 1.0, 1000)
    assert first_reaching(rows, 0.71) is None


def test_a_non_finite_value_reaches_no_target() -> None:
    assert first_reaching([row(5, math.nan)], 0.1) is None


def test_the_distribution_is_made_of_quartiles() -> None:
    found = distribution([0.4, 0.1, 0.2, 0.3, 0.5, math.nan])
    assert found is not None
    assert [found.low, found.quarter, found.median, found.three_quarters, found.high] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert distribution([math.nan]) is None


def test_mean_and_std_of_too_few_or_non_finite_values() -> None:
    assert (mean([0.2, 0.4]), spread([0.2, 0.4])) == pytest.approx((0.3, math.sqrt(0.02)))
    assert math.isnan(mean([])) and math.isnan(mean([0.1, math.nan]))
    assert spread([0.3]) == spread([]) == spread([0.1, math.nan]) == 0.0


def test_a_curve_has_the_seeds_that_were_evaluated_there_and_ends_with_the_final_values() -> None:
    first = [row(5, 0.9, "after_local"), row(5, 0.2), row(10, 0.4), row(10, 0.5, final=True)]
    second = [row(5, 0.4), row(10, math.nan)]
    points = curve(map(round_ends, [first, second]), "test_accuracy")
    assert [point.iteration for point in points] == [5, 10]
    assert points[0][1:] == pytest.approx((0.5, 500, 0.3, 0.2, 0.4, 2))
    assert points[1][3:] == (0.5, 0.5, 0.5, 1)
    assert curve([first], "disagreement") == []


def test_rows_during_training_are_told_from_the_final_one() -> None:
    rows = [row(5, 0.1, "after_local"), row(5, 0.2), row(5, 0.3, final=True)]
    assert [r["test_accuracy"] for r in round_ends(rows)] == [0.2, 0.3]
    assert [r["test_accuracy"] for r in round_ends(rows, final=False)] == [0.2]
    assert final_row(rows) is rows[2] and final_row(rows[:2]) is None


def test_seeds_are_summarised_over_their_final_rows() -> None:
    class Two(Seeds):
        def __init__(self, shift: float) -> None:
            self.rows_by_seed_ = {s: [row(5, 0.5 + s / 10 + shift * (s + 1), final=True)] for s in (0, 1)}

        @property
        def rows_by_seed(self) -> dict[int, list[Row]]:
            return self.rows_by_seed_ | {2: [row(5, 0.1)]}  # not finished

    two = Two(0.0)
    assert two.finals("test_accuracy") == {0: 0.5, 1: 0.6}
    assert (two.mean("test_accuracy"), two.spread("test_accuracy")) == pytest.approx((0.55, 0.0707), abs=1e-4)
    difference = Two(0.1).difference(two, "test_accuracy")
    assert difference is not None and difference.mean == pytest.approx(0.15)
    assert [reached.iteration for reached in two.reached(0.6)] == [5]
