"""Metrics of one model's predictions, computed by scikit-learn. docs/metrics.md has the formulas.

Where a metric is not defined it is absent, never 0: ROC-AUC of samples of one class, F1 of the positive class where
there are three. Means over classes are over the classes that occur in the labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal.lazy import Tensor, torch

BINS = 10

Labels = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for n labelled samples of K classes."""

    labels: Labels  # (n,)
    predicted: Labels  # (n,)
    probabilities: Numbers  # (n, K)
    positive: int = 1  # the class that metrics of two classes are about

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, positive: int | None = None) -> Predictions:
        probabilities = torch.softmax(logits.detach().cpu().double(), -1).numpy()
        predicted = logits.argmax(-1).cpu().numpy()
        return cls(labels.cpu().numpy(), predicted, probabilities, 1 if positive is None else positive)

    @property
    def n_classes(self) -> int:
        return int(self.probabilities.shape[1])

    @property
    def is_binary(self) -> bool:
        return self.n_classes == 2

    @cached_property
    def present(self) -> list[int]:
        """The classes that occur in the labels."""
        return [int(k) for k in np.unique(self.labels)]

    @property
    def ranked(self) -> list[int]:
        """The classes whose ranking is measured: the positive one of two, else all that occur."""
        return [self.positive] if self.is_binary else self.present

    @cached_property
    def claimed(self) -> Numbers:
        """The probability that is checked for calibration: of the positive class of two, else the largest.  -> (n,)"""
        found: Numbers = self.probabilities[:, self.positive] if self.is_binary else self.probabilities.max(1)
        return found

    @cached_property
    def came_true(self) -> Numbers:
        """1 where what `claimed` is the probability of happened, else 0.  -> (n,)"""
        expected = self.positive if self.is_binary else self.predicted
        return np.asarray(self.labels == expected, np.float64)

    @cached_property
    def bins(self) -> Labels:
        """The bin of each sample's `claimed` probability: [0, 0.1), ..., [0.9, 1].  -> (n,)"""
        return np.minimum((self.claimed * BINS).astype(np.int64), BINS - 1)

    @cached_property
    def one_hot(self) -> Numbers:
        return np.eye(self.n_classes)[self.labels]


def compute(predictions: Predictions, names: tuple[str, ...]) -> dict[str, float]:
    """name -> value, for the metrics that are defined for these predictions."""
    found = {name: SCORES[name](predictions) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def per_class(p: Predictions) -> dict[str, list[float]]:
    """Precision, recall, F1 and number of samples of every class; 0 where nothing was predicted or occurs."""
    from sklearn.metrics import precision_recall_fscore_support

    classes = range(p.n_classes)
    found = precision_recall_fscore_support(p.labels, p.predicted, labels=[*classes], zero_division=0)
    return {name: part.tolist() for name, part in zip(("precision", "recall", "f1", "samples"), found, strict=True)}


def confusion(p: Predictions) -> list[list[int]]:
    """Samples by true class (row) and predicted class (column).  -> (K, K)"""
    from sklearn.metrics import confusion_matrix

    counts: list[list[int]] = confusion_matrix(p.labels, p.predicted, labels=[*range(p.n_classes)]).tolist()
    return counts


def reliability(p: Predictions) -> list[dict[str, float]]:
    """The points of a reliability diagram: mean predicted probability, observed share and samples of each used bin."""
    return [
        {"predicted": float(p.claimed[inside].mean()), "observed": float(p.came_true[inside].mean()),
         "samples": int(inside.sum())}
        for inside in (p.bins == b for b in np.unique(p.bins))
    ]  # fmt: skip


def _mean_over_classes(score: str) -> Callable[[Predictions], float]:
    def measure(p: Predictions) -> float:
        return float(_sklearn(score)(p.labels, p.predicted, labels=p.present, average="macro", zero_division=0))

    return measure


def _of_positive(score: str) -> Callable[[Predictions], float | None]:
    def measure(p: Predictions) -> float | None:
        if not p.is_binary or p.positive not in p.present:
            return None
        return float(_sklearn(score)(p.labels, p.predicted, pos_label=p.positive, average="binary", zero_division=0))

    return measure


def _ranking(score: str) -> Callable[[Predictions], float | None]:
    """One class against the rest; defined where samples of both occur."""

    def measure(p: Predictions) -> float | None:
        if len(p.present) < 2:
            return None
        each = [_sklearn(score)(p.labels == k, p.probabilities[:, k]) for k in p.ranked]
        return float(np.mean(each))

    return measure


def _log_loss(p: Predictions) -> float:
    return float(_sklearn("log_loss")(p.labels, p.probabilities, labels=[*range(p.n_classes)]))


def _brier(p: Predictions) -> float:
    """The sum over classes of (p_k - [y = k])^2, halved with two classes: both of them have the same error."""
    squares = p.n_classes * float(_sklearn("mean_squared_error")(p.one_hot, p.probabilities))
    return squares / 2 if p.is_binary else squares


def _calibration_error(p: Predictions) -> float:
    """Expected calibration error: the sum over bins of n_b / n * |observed - predicted|."""
    gaps = np.bincount(p.bins, p.came_true - p.claimed, minlength=BINS)
    return float(np.abs(gaps).sum() / len(p.labels))


def _sklearn(name: str) -> Any:
    import sklearn.metrics

    return getattr(sklearn.metrics, name)


SCORES: dict[str, Callable[[Predictions], float | None]] = {
    "accuracy": lambda p: float((p.labels == p.predicted).mean()),
    "balanced_accuracy": _mean_over_classes("recall_score"),
    "pr_auc": _ranking("average_precision_score"),
    "roc_auc": _ranking("roc_auc_score"),
    "f1_macro": _mean_over_classes("f1_score"),
    "precision_macro": _mean_over_classes("precision_score"),
    "f1": _of_positive("f1_score"),
    "precision": _of_positive("precision_score"),
    "recall": _of_positive("recall_score"),
    "log_loss": _log_loss,
    "brier": _brier,
    "calibration_error": _calibration_error,
}
