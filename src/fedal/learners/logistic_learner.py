"""scikit-learn's logistic regression as a learner, also at the end of a pipeline. Every step is an exact gradient step.

The logits are linear in the weights, so dW = X^T dlogits and db = sum(dlogits) are the exact gradients of any loss of
the outputs. Adam steps along them. The transformers before the regression are fixed: they are part of the inputs.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, ArrayLearner, Pass
from fedal.learners.sklearn_learner import is_fitted

UNSEEN = 4.0  # how far below the smallest intercept a class starts that the owner's data do not have
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as in PyTorch


class LogisticLearner(ArrayLearner):
    """Goes on from a fitted `LogisticRegression`, or from zero weights if it is not fitted.

    The regression's own solver and penalty are not used again; `l2` is the weight of |W|^2 / 2 in the loss.
    """

    def __init__(
        self, classifier: Any = None, *, n_features: int, n_classes: int, lr: float = 1e-2, l2: float = 0.0
    ) -> None:
        if not lr > 0 or l2 < 0:
            raise ConfigError(f"lr = {lr}, l2 = {l2}: expected lr > 0 and l2 >= 0.")
        self._owner = LogisticRegression() if classifier is None else copy.deepcopy(classifier)
        is_pipeline = isinstance(self._owner, Pipeline)
        self._before = self._owner[:-1] if is_pipeline and len(self._owner) > 1 else None
        self._last = self._owner[-1] if is_pipeline else self._owner
        if not isinstance(self._last, LogisticRegression):
            raise ConfigError(
                f"{type(self._last).__name__}: expected LogisticRegression, or a pipeline that ends with it. Other "
                "classifiers can be the base of a TreeLearner."
            )
        if self._before is not None:
            check_is_fitted(self._before)
        self._n_features, self._n_classes, self._lr, self._l2 = n_features, n_classes, lr, l2
        width = self._inputs(np.zeros((1, n_features), np.float32)).shape[1]
        self._weights = self._started(width)
        self._moments = np.zeros((2, *self._weights.shape))
        self._taken = 0

    def outputs(self, x: Array) -> Array:
        return (self._inputs(x) @ self._weights).astype(np.float32)

    def step(self, passes: list[Pass]) -> None:
        gradient = sum(self._inputs(one.x).T @ one.dlogits.astype(np.float64) for one in passes)
        gradient = gradient + self._l2 * np.concatenate([self._weights[:-1], np.zeros((1, self._n_classes))])
        self._taken += 1
        first, second = BETAS
        self._moments = np.stack(
            [first * self._moments[0] + (1 - first) * gradient, second * self._moments[1] + (1 - second) * gradient**2]
        )
        mean, square = self._moments[0] / (1 - first**self._taken), self._moments[1] / (1 - second**self._taken)
        self._weights = self._weights - self._lr * mean / (np.sqrt(square) + EPSILON)

    def classifier(self) -> Any:
        """A copy of the owner's classifier or pipeline with the learned weights."""
        fitted = copy.deepcopy(self._owner)
        last = fitted[-1] if isinstance(fitted, Pipeline) else fitted
        weights = self._weights[:, 1:] - self._weights[:, :1] if self._n_classes == 2 else self._weights
        last.coef_, last.intercept_ = weights[:-1].T.copy(), weights[-1].copy()
        last.classes_, last.n_features_in_ = np.arange(self._n_classes), len(weights) - 1
        return fitted

    def arrays(self) -> dict[str, Array]:
        return {"weights": self._weights, "moments": self._moments, "taken": np.array(self._taken)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        if arrays["weights"].shape != self._weights.shape or arrays["moments"].shape != self._moments.shape:
            raise ConfigError("the saved weights do not fit this learner: columns or classes differ.")
        self._weights, self._moments, self._taken = arrays["weights"], arrays["moments"], int(arrays["taken"])

    def _inputs(self, x: Array) -> Array:
        """The rows after the fixed transformers, and a 1 for the intercept.  (B, ...) -> (B, d + 1)"""
        rows = x.reshape(len(x), -1).astype(np.float64)
        if rows.shape[1] != self._n_features:
            raise ConfigError(f"samples have {rows.shape[1]} numbers; this learner was made for {self._n_features}.")
        if self._before is not None:
            rows = np.asarray(self._before.transform(rows), np.float64)
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)

    def _started(self, width: int) -> Array:
        """The owner's weights, one column per class; zeros if the regression is not fitted.  -> (d + 1, K)"""
        weights = np.zeros((width, self._n_classes))
        if not is_fitted(self._last):
            return weights
        classes = np.asarray(self._last.classes_)
        found = np.concatenate([self._last.coef_, self._last.intercept_[:, None]], axis=1)  # (1 or K, d + 1)
        if found.shape[1] != width:
            raise ConfigError(
                f"the regression takes {found.shape[1] - 1} columns; this federation gives it {width - 1}."
            )
        if len(found) == 1:  # two classes share one row, the log odds
            found = np.concatenate([-found / 2, found / 2])
        if not np.isin(classes, np.arange(self._n_classes)).all():
            raise ConfigError(
                f"the regression's classes are {', '.join(map(str, classes))}; expected integers from 0 to "
                f"{self._n_classes - 1}, in the order of the federation's classes."
            )
        weights[-1] = found[:, -1].min() - UNSEEN
        weights[:, classes.astype(int)] = found.T
        return weights


def make(input_shape: tuple[int, ...], n_classes: int) -> LogisticLearner:
    """The model `logistic`: from zero weights."""
    return LogisticLearner(n_features=int(np.prod(input_shape)), n_classes=n_classes)
