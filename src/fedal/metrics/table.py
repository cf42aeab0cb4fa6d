"""The metrics by name: what each says and which direction is better. docs/metrics.md has the formulas.

Reading this table imports neither torch nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedal.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Metric:
    """One metric. Its columns are named after the data: `test_pr_auc`, `own_validation_pr_auc`."""

    name: str
    words: str
    sentence: str
    higher_is_better: bool = True

    @property
    def worst(self) -> str:
        """What ends the name of the column of the worst client."""
        return "min" if self.higher_is_better else "max"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "The share of samples whose largest output is at their label."),
        Metric("balanced_accuracy", "balanced accuracy",
               "The mean over classes of the share of a class's samples that are recognised: 1/K for guessing, "
               "whatever the class sizes. It is the same as macro recall."),
        Metric("pr_auc", "PR-AUC",
               "The area under the precision-recall curve (average precision) of the positive class; with more than "
               "two classes the mean over classes. Guessing gives the positive class's share."),
        Metric("roc_auc", "ROC-AUC",
               "The probability that a sample of the positive class is ranked above another one; with more than two "
               "classes the mean over classes. Guessing gives 0.5."),
        Metric("f1_macro", "macro F1", "The mean over classes of F1, which is 2PR / (P + R)."),
        Metric("precision_macro", "macro precision",
               "The mean over classes of the share of a class's predictions that are right."),
        Metric("f1", "F1", "F1 of the positive class; with two classes only."),
        Metric("precision", "precision",
               "The share of samples predicted as positive that are; with two classes only."),
        Metric("recall", "recall", "The share of positive samples that are found; with two classes only."),
        Metric("log_loss", "log loss", "The mean of -log p(label), in nats.", higher_is_better=False),
        Metric("brier", "Brier score",
               "The mean squared distance between probabilities and labels: of the positive class with two classes, "
               "summed over classes with more.", higher_is_better=False),
        Metric("calibration_error", "calibration error",
               "How far predicted probabilities and observed shares are apart, mean over ten equal bins weighted by "
               "their samples.", higher_is_better=False),
    )
}  # fmt: skip

DATA = {"test": "test", "validation": "validation", "own_validation": "own held-out", "own_test": "local test"}
"""The data that metrics are measured on, as columns and texts name them."""


@dataclass(frozen=True)
class Column:
    """A metric on one kind of data: a column of the record."""

    metric: Metric
    data: str = "test"

    @property
    def key(self) -> str:
        return f"{self.data}_{self.metric.name}"

    @property
    def words(self) -> str:
        return f"{DATA[self.data]} {self.metric.words}"

    @property
    def worst_key(self) -> str:
        return f"{self.key}_{self.metric.worst}"

    def rank(self, value: float) -> float:
        """A number that is larger for a better value."""
        return value if self.metric.higher_is_better else -value


def column(name: str) -> Column:
    """The column that `pr_auc` (on the test set) or `own_validation_pr_auc` names; raises ConfigError."""
    for data in ("", *DATA):
        rest = name.removeprefix(f"{data}_") if data else name
        if rest in METRICS:
            return Column(METRICS[rest], data or "test")
    raise ConfigError(
        f'unknown metric "{name}". {did_you_mean(name, METRICS)}Expected one of {", ".join(METRICS)}; for other data '
        "than the test set put validation_, own_validation_ or own_test_ before it."
    )


def first_column(row: Mapping[str, object]) -> Column:
    """The headline of a row: its first metric on the test set."""
    found = (METRICS.get(key.removeprefix("test_")) for key in row if key.startswith("test_"))
    return Column(next((metric for metric in found if metric is not None), METRICS["accuracy"]))


UNEQUAL = 4
"""Classes are very unequal if the most frequent one has at least this many times the samples of the rarest."""

FOR_UNEQUAL = ("pr_auc", "balanced_accuracy")


def are_unequal(labels: NDArray[np.int64]) -> bool:
    """Whether the classes that occur in these labels are very unequal."""
    counts = np.unique(labels, return_counts=True)[1]
    return bool(counts.max() >= UNEQUAL * counts.min())


def chosen(setting: str | Sequence[str], labels: NDArray[np.int64], *, benchmark: bool) -> tuple[str, ...]:
    """The metrics that a run records, the headline first.

    `auto`: accuracy; on very unequal classes PR-AUC, then balanced accuracy, then all others. A built-in `benchmark`
    keeps the accuracy that its literature reports. `all`: all of them, with the same headline.
    """
    suited = FOR_UNEQUAL if not benchmark and are_unequal(labels) else ("accuracy",)
    if setting == "auto" and suited == ("accuracy",):
        return suited
    if isinstance(setting, str):
        return tuple(dict.fromkeys([*suited, *METRICS]))
    return tuple(dict.fromkeys(setting))
