"""Any scikit-learn regressor with `partial_fit` as a learner: it fits logits that are one gradient step lower.

A regressor cannot backpropagate an output gradient, but it can fit targets. In a batch of B samples, each target is
f - step * B * dlogits, where B * dlogits is the gradient of the sample's loss. docs/learners.md explains when this is
exactly gradient descent and when it fails.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, ArrayLearner, Pass


class SklearnLearner(ArrayLearner):
    """Wraps a copy of a regressor that predicts several columns, such as MLPRegressor; a fitted one keeps its fit.

    Wrap a regressor that predicts a single column, such as SGDRegressor, in a `MultiOutputRegressor` first.
    """

    def __init__(self, regressor: Any, n_features: int, n_classes: int, *, step: float = 1.0) -> None:
        _refuse_unfit(regressor)
        if not step > 0:
            raise ConfigError(f"step = {step}: expected a positive number; 1 changes a logit by its gradient.")
        self.regressor, self._step = copy.deepcopy(regressor), step
        if not is_fitted(self.regressor):  # it has no weights before its first batch
            self._partial_fit(np.zeros((1, n_features)), np.zeros((1, n_classes)))
        width = np.shape(self.regressor.predict(np.zeros((1, n_features))))
        if width != (1, n_classes):
            raise ConfigError(
                f"{type(regressor).__name__} returns shape {width} for one sample; expected (1, {n_classes})."
            )

    def outputs(self, x: Array) -> Array:
        return np.asarray(self.regressor.predict(_rows(x)), np.float32)

    def step(self, passes: list[Pass]) -> None:
        x = np.concatenate([_rows(one.x) for one in passes])
        targets = [one.logits.astype(np.float64) - self._step * len(x) * one.dlogits for one in passes]
        self._partial_fit(x, np.concatenate(targets))

    def arrays(self) -> dict[str, Array]:
        return {name: np.array(holder[key]) for name, holder, key in _learned(self.regressor)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        places = list(_learned(self.regressor))
        if {name: np.shape(holder[key]) for name, holder, key in places} != {n: a.shape for n, a in arrays.items()}:
            raise ConfigError(f"the saved arrays do not fit this {type(self.regressor).__name__}.")
        for name, holder, key in places:
            holder[key] = arrays[name] if isinstance(holder[key], np.ndarray) else arrays[name].item()

    def _partial_fit(self, x: Array, targets: Array) -> None:
        self.regressor.partial_fit(x, targets)
        if hasattr(self.regressor, "loss_curve_"):
            del self.regressor.loss_curve_[:-1]  # it would grow with every step, and only the last entry is used


def _rows(x: Array) -> Array:
    return x.reshape(len(x), -1).astype(np.float64)


def is_fitted(regressor: Any) -> bool:
    try:
        check_is_fitted(regressor)
    except NotFittedError:
        return False
    return True


def _refuse_unfit(regressor: Any) -> None:
    if not hasattr(regressor, "partial_fit") or not hasattr(regressor, "predict"):
        raise ConfigError(
            f"{type(regressor).__name__} has no partial_fit, so it cannot learn batch by batch. "
            "Use MLPRegressor, MultiOutputRegressor(SGDRegressor(...)), or fedal's TreeLearner."
        )
    settings = regressor.get_params()
    for name, value in settings.items():
        if name.rpartition("__")[2] == "random_state" and not isinstance(value, int):
            raise ConfigError(
                f"{type(regressor).__name__}: set {name}=0 or another integer, so that runs are reproducible."
            )
        if name.rpartition("__")[2] == "average" and value:
            raise ConfigError(f"{type(regressor).__name__}: {name} cannot be saved and restored; leave it unset.")


def _learned(thing: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fitted values of an estimator: (name, the dict or list that holds it, its key) of each array and number.

    Settings, strings and generators are skipped. Saving and loading walk the same path, so a state holds only numbers
    and never decides which objects are created.
    """
    if isinstance(thing, list):
        holder: Any = thing
        items: list[tuple[Any, Any]] = list(enumerate(thing))
    else:
        holder = vars(thing)
        settings = thing.get_params(deep=False) if isinstance(thing, BaseEstimator) else {}
        items = [(key, value) for key, value in holder.items() if key not in settings]
    for key, value in items:
        name = f"{path}{key}"
        if isinstance(value, bool | int | float | np.number) or (
            isinstance(value, np.ndarray) and value.dtype != object
        ):
            yield name, holder, key
        elif isinstance(value, list | BaseEstimator) or type(value).__module__.startswith("sklearn.neural_network"):
            yield from _learned(value, f"{name}.")
