"""Bootstrap intervals of metrics: 95% of resampled test sets lie between their ends.

A resample draws as many samples of each class, with replacement, as the data have. It is a row of weights (how often
each sample was drawn), and every metric is a function of weights, computed for all resamples at once: calling
scikit-learn a thousand times per model would take minutes. A test compares the two. The draws depend on the seed and
the data alone, so two models are measured on the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedal.metrics.scores import BINS, Numbers, Predictions
from fedal.seeding import raw_bits

RESAMPLES = 1000
AT_ONCE = 2_000_000  # numbers of a table of weights
TAIL = 2.5  # percent on each side


def intervals(p: Predictions, names: tuple[str, ...], key: int) -> dict[str, tuple[float, float]]:
    """name -> the ends of its 95% percentile interval, for the metrics that are defined; `key` names the draws."""
    values: dict[str, list[Numbers]] = {}
    for weights in _resamples(p.labels, key):
        for name in names:
            found = WEIGHTED[name](p, weights)
            if found is not None:
                values.setdefault(name, []).append(found)
    ends = {name: np.percentile(np.concatenate(parts), [TAIL, 100 - TAIL]) for name, parts in values.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _resamples(labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]], key: int) -> Iterator[Numbers]:
    """Tables of weights, one row per resample.  -> (R, n)"""
    order = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each sample's class, in that order
    lengths = np.repeat(sizes, sizes).astype(np.uint64)
    n = len(labels)
    size = max(1, AT_ONCE // n)
    for first in range(0, RESAMPLES, size):
        table = np.zeros((min(size, RESAMPLES - first), n))
        for row, weights in enumerate(table):
            drawn = order[starts + (raw_bits(key, first + row, n) % lengths).astype(np.int64)]
            weights += np.bincount(drawn, minlength=n)
        yield table


def _mean(values: Numbers) -> Callable[[Numbers], Numbers]:
    return lambda weights: weights @ values / len(values)


def _counts(p: Predictions, weights: Numbers, k: int) -> tuple[Numbers, Numbers, Numbers]:
    """Right predictions of class k, its samples, and its predictions, in every resample.  -> (R,) each"""
    is_k, says_k = p.labels == k, p.predicted == k
    return tuple(weights @ which.astype(np.float64) for which in (is_k & says_k, is_k, says_k))


def _recall(p: Predictions, weights: Numbers, k: int) -> Numbers:
    right, samples, _ = _counts(p, weights, k)
    return _ratio(right, samples)


def _precision(p: Predictions, weights: Numbers, k: int) -> Numbers:
    right, _, predictions = _counts(p, weights, k)
    return _ratio(right, predictions)


def _f1(p: Predictions, weights: Numbers, k: int) -> Numbers:
    right, samples, predictions = _counts(p, weights, k)
    return _ratio(2 * right, samples + predictions)


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """above / below; 0 where below is 0, as with zero_division=0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


PerClass = Callable[[Predictions, Numbers, int], Numbers]
Weighted = Callable[[Predictions, Numbers], Numbers | None]


def _mean_over_classes(of_class: PerClass) -> Weighted:
    return lambda p, weights: np.mean([of_class(p, weights, k) for k in p.present], axis=0)


def _of_positive(of_class: PerClass) -> Weighted:
    return lambda p, weights: (
        of_class(p, weights, p.positive) if p.is_binary and p.positive in p.present else None
    )  # fmt: skip


def _ranking(area: Callable[[Numbers, Numbers], Numbers]) -> Weighted:
    """The mean over classes of an area under a curve of right and wrong weights above each threshold."""

    def measure(p: Predictions, weights: Numbers) -> Numbers | None:
        if len(p.present) < 2:
            return None
        return np.mean([area(*_above(p, weights, k)) for k in p.ranked], axis=0)  # type: ignore[no-any-return]

    return measure


def _above(p: Predictions, weights: Numbers, k: int) -> tuple[Numbers, Numbers]:
    """The weights of right and of wrong samples at or above each distinct score of class k, from the top.  (R, T)"""
    order = np.argsort(-p.probabilities[:, k], kind="stable")
    scores, is_k = p.probabilities[order, k], (p.labels[order] == k).astype(np.float64)
    last_of_score = np.append(np.diff(scores) != 0, True)
    sorted_weights = weights[:, order]
    right, wrong = (np.cumsum(sorted_weights * which, axis=1)[:, last_of_score] for which in (is_k, 1 - is_k))
    return right, wrong


def _roc_area(right: Numbers, wrong: Numbers) -> Numbers:
    """Trapezoids between thresholds, starting at (0, 0)."""
    heights = right + np.concatenate([np.zeros((len(right), 1)), right[:, :-1]], axis=1)
    widths = np.diff(wrong, axis=1, prepend=0.0)
    area: Numbers = (heights * widths).sum(1) / 2 / (right[:, -1] * wrong[:, -1])
    return area


def _pr_area(right: Numbers, wrong: Numbers) -> Numbers:
    """Average precision: the sum over thresholds of precision times the gain in recall."""
    area: Numbers = (_ratio(right, right + wrong) * np.diff(right, axis=1, prepend=0.0)).sum(1) / right[:, -1]
    return area


def _log_loss(p: Predictions, weights: Numbers) -> Numbers:
    chosen = p.probabilities[np.arange(len(p.labels)), p.labels]
    return _mean(-np.log(np.clip(chosen, np.finfo(np.float64).eps, 1)))(weights)


def _brier(p: Predictions, weights: Numbers) -> Numbers:
    squares = ((p.probabilities - p.one_hot) ** 2).sum(1)
    return _mean(squares / 2 if p.is_binary else squares)(weights)


def _calibration_error(p: Predictions, weights: Numbers) -> Numbers:
    gaps = (p.came_true - p.claimed)[:, None] * (p.bins[:, None] == np.arange(BINS))  # (n, BINS)
    error: Numbers = np.abs(weights @ gaps).sum(1) / len(p.labels)
    return error


WEIGHTED: dict[str, Weighted] = {
    "accuracy": lambda p, weights: _mean((p.labels == p.predicted).astype(np.float64))(weights),
    "balanced_accuracy": _mean_over_classes(_recall),
    "pr_auc": _ranking(_pr_area),
    "roc_auc": _ranking(_roc_area),
    "f1_macro": _mean_over_classes(_f1),
    "precision_macro": _mean_over_classes(_precision),
    "f1": _of_positive(_f1),
    "precision": _of_positive(_precision),
    "recall": _of_positive(_recall),
    "log_loss": _log_loss,
    "brier": _brier,
    "calibration_error": _calibration_error,
}
