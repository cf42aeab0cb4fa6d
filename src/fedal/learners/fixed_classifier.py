"""A fitted scikit-learn classifier or pipeline as a fixed function from inputs to logits, log p."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array

LEAST = 1e-6  # a probability of 0 would be a logit that nothing can correct


class FixedClassifier:
    """Anything with `predict_proba` and `classes_`, integers from 0 to K - 1; classes that it lacks have p = LEAST."""

    def __init__(self, classifier: Any, n_features: int, n_classes: int) -> None:
        if not hasattr(classifier, "predict_proba") or not hasattr(classifier, "classes_"):
            raise ConfigError(f"{type(classifier).__name__}: expected a fitted classifier with predict_proba.")
        self._classifier, self._n_classes = copy.deepcopy(classifier), n_classes
        self._classes = np.asarray(classifier.classes_)
        if not np.isin(self._classes, np.arange(n_classes)).all():
            raise ConfigError(
                f"{type(classifier).__name__}: its classes are {', '.join(map(str, self._classes))}; expected integers "
                f"from 0 to {n_classes - 1}, in the order of the federation's classes."
            )
        probe = np.random.Generator(np.random.Philox(key=0)).normal(size=(8, n_features)).astype(np.float32)
        try:
            self.mark = self.logits(probe)  # tells two classifiers apart when a run is resumed
        except ValueError as error:
            raise ConfigError(f"{type(classifier).__name__} does not take these inputs: {error}") from None

    def logits(self, rows: Array) -> Array:
        """(B, d) -> (B, K)"""
        p = np.full((len(rows), self._n_classes), LEAST)
        p[:, self._classes.astype(int)] = self._classifier.predict_proba(rows)
        return np.asarray(np.log(np.maximum(p, LEAST)), np.float32)
