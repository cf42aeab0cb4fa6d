"""Metrics by hand-computable numbers, where they are not defined, and their bootstrap against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from fedal.metrics.bootstrap import WEIGHTED, _resamples, intervals
from fedal.metrics.scores import SCORES, Predictions, compute, confusion, per_class, reliability
from fedal.metrics.table import METRICS, chosen

ALL = tuple(METRICS)


def predictions(labels: list[int], probabilities: list[list[float]], positive: int | None = None) -> Predictions:
    return Predictions.of(torch.tensor(probabilities, dtype=torch.float64).log(), torch.tensor(labels), positive)


FOUR = predictions([0, 0, 0, 1], [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])


def drawn(n: int, n_classes: int, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(n_classes, (n,), generator=generator)
    ties = (logits[:, :1] > 0.5) * 0.0 + (logits[:, :1] <= 0.5) * logits  # many equal scores
    return Predictions.of(ties + torch.nn.functional.one_hot(labels, n_classes), labels)


def test_every_metric_has_a_value_and_an_interval() -> None:
    assert set(SCORES) == set(METRICS) == set(WEIGHTED)


def test_the_metrics_of_a_hand_case() -> None:
    """Scores of class 1: 0.8 (wrong), 0.7 (right), 0.4, 0.1; predicted 0, 0, 1, 1."""
    found = compute(FOUR, ALL)
    assert found["accuracy"] == 3 / 4
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["precision"] == 1 / 2 and found["recall"] == 1
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["f1_macro"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found["precision_macro"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["roc_auc"] == pytest.approx(2 / 3)  # above two of the three others
    assert found["pr_auc"] == pytest.approx(1 / 2)  # found at rank 2
    assert found["log_loss"] == pytest.approx(-math.log(0.9 * 0.6 * 0.2 * 0.7) / 4)
    assert found["brier"] == pytest.approx((0.1**2 + 0.4**2 + 0.8**2 + 0.3**2) / 4)
    assert found["calibration_error"] == pytest.approx((0.1 + 0.4 + 0.8 + 0.3) / 4)  # each in its own bin


def test_the_positive_class_is_chosen() -> None:
    swapped = predictions([1, 1, 1, 0], [[0.1, 0.9], [0.4, 0.6], [0.8, 0.2], [0.7, 0.3]], positive=0)
    assert compute(swapped, ALL) == pytest.approx(compute(FOUR, ALL))


def test_means_over_classes_leave_out_the_classes_that_do_not_occur() -> None:
    three = predictions([0, 0, 1], [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    found = compute(three, ALL)
    assert found["balanced_accuracy"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["brier"] == pytest.approx((0.06 + (0.81 + 0.01 + 0.64) + 0.06) / 3)
    assert not {"f1", "precision", "recall"} & found.keys()


def test_one_class_alone_has_no_ranking() -> None:
    found = compute(predictions([1, 1], [[0.4, 0.6], [0.7, 0.3]]), ALL)
    assert not {"roc_auc", "pr_auc"} & found.keys()
    assert found["recall"] == 1 / 2 and "balanced_accuracy" in found
    assert "recall" not in compute(predictions([0, 0], [[0.4, 0.6], [0.7, 0.3]]), ALL)


def test_tables_of_the_hand_case() -> None:
    assert confusion(FOUR) == [[2, 1], [0, 1]]
    assert per_class(FOUR)["samples"] == [3, 1] and per_class(FOUR)["recall"] == [pytest.approx(2 / 3), 1]
    points = reliability(FOUR)
    assert [round(point["predicted"], 6) for point in points] == [0.1, 0.4, 0.7, 0.8]
    assert [point["observed"] for point in points] == [0, 0, 1, 0]


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_resample_is_scikit_learn_with_sample_weights(n_classes: int) -> None:
    p = drawn(60, n_classes)
    weights = next(_resamples(p.labels, key=5))[:3]
    assert (weights.sum(1) == 60).all() and (weights != 1).any()
    for row in weights:
        again = np.repeat(np.arange(60), row.astype(int))
        resampled = Predictions(p.labels[again], p.predicted[again], p.probabilities[again])
        expected = compute(resampled, ALL)
        assert {name: WEIGHTED[name](p, row[None])[0] for name in expected} == pytest.approx(expected)
    one = np.ones((1, 60))
    assert {name: WEIGHTED[name](p, one)[0] for name in compute(p, ALL)} == pytest.approx(compute(p, ALL))


def test_an_interval_holds_the_value_and_depends_on_the_key_alone() -> None:
    p = drawn(200, 3)
    found, values = intervals(p, ALL, key=1), compute(p, ALL)
    assert found.keys() == values.keys()
    for name in ("accuracy", "balanced_accuracy", "roc_auc", "pr_auc", "log_loss", "brier"):
        low, high = found[name]
        assert low < values[name] < high
    assert intervals(p, ("accuracy",), key=1)["accuracy"] == found["accuracy"]
    assert intervals(p, ("accuracy",), key=2)["accuracy"] != found["accuracy"]
    spread = math.sqrt(sum(n * a * (1 - a) for n, a in zip(per_class(p)["samples"], per_class(p)["recall"]))) / 200
    assert found["accuracy"][1] - found["accuracy"][0] == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_the_headline_fits_the_classes() -> None:
    equal, unequal = np.repeat([0, 1], [30, 70]), np.repeat([0, 1], [20, 80])
    assert chosen("auto", equal, benchmark=False) == ("accuracy",)
    assert chosen("auto", unequal, benchmark=False)[:2] == ("pr_auc", "balanced_accuracy")
    assert set(chosen("auto", unequal, benchmark=False)) == set(METRICS)
    assert chosen("auto", unequal, benchmark=True) == ("accuracy",)
    assert chosen("all", equal, benchmark=False)[0] == "accuracy" and set(chosen("all", equal, benchmark=False)) == set(
        METRICS
    )
    assert chosen(("roc_auc", "roc_auc"), unequal, benchmark=False) == ("roc_auc",)


def test_macro_metrics_equal_those_of_scikit_learn() -> None:
    p = drawn(300, 4)
    found = compute(p, ALL)
    assert found["balanced_accuracy"] == sklearn.metrics.balanced_accuracy_score(p.labels, p.predicted)
    assert found["roc_auc"] == pytest.approx(
        sklearn.metrics.roc_auc_score(p.labels, p.probabilities, multi_class="ovr")
    )
    assert found["brier"] == pytest.approx(((p.probabilities - p.one_hot) ** 2).sum(1).mean())
