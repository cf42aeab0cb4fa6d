"""Boosted trees as a learner: what the libraries have in common. `xgboost_learner` and `lightgbm_learner` do the rest.

A step of gradient descent on one batch would be one tree on thirty samples, which is mostly noise. So the gradients of
a stage are collected, and one boosting step is taken on all its batches when the stage ends. During a stage the model
does not change: every gradient is taken at the outputs that the step starts from.

A boosting step is a Newton step: a leaf with samples S outputs -sum(g) / (sum(h) + l2), times the step size. g is the
gradient of each sample's own loss, B * dlogits, and h = p (1 - p) is the diagonal of the Hessian of cross-entropy in
the logits, at the current outputs p = softmax(f).

A model of two classes has one output, the log odds m. Its logits are (-m/2, m/2), so dm = (df_1 - df_0) / 2, and
h = p_1 (1 - p_1).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Self

import numpy as np
import torch

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, ArrayLearner, Pass, as_arrays, as_tensors
from fedal.learners.base import State

MIN_HESSIAN = 1e-6  # a sample that the model is sure of still has a finite step


class BoostedLearner(ArrayLearner):
    """Trees of the owner, which stay, and up to `max_steps` steps of the federation, of which the oldest go first."""

    def __init__(self, n_features: int, n_classes: int, max_steps: int) -> None:
        if max_steps < 1:
            raise ConfigError(f"max_steps = {max_steps}: expected at least 1.")
        self._n_features, self._n_classes, self._max_steps = n_features, n_classes, max_steps
        self._steps = 0  # taken by the federation; more than are kept once the cap is reached
        self._collected: list[tuple[Array, Array, Array]] = []  # inputs, gradients, Hessians of the current stage

    # what a library has to do

    @abstractmethod
    def margins(self, x: Array) -> Array:
        """The outputs for rows of inputs: log odds (n, 1), or one per class (n, K)."""

    @abstractmethod
    def boost(self, x: Array, gradients: Array, hessians: Array) -> None:
        """Adds one boosting step, fitted to these samples, and drops the oldest one beyond `max_steps`.

        It replaces the model and never changes it: an anchor may share it.  (n, d), (n, 1 or K), (n, 1 or K)
        """

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The model in the library's own format."""

    @abstractmethod
    def from_bytes(self, content: bytes) -> None:
        """Restores what `to_bytes` returned."""

    # the learner

    @property
    def is_binary(self) -> bool:
        return self._n_classes == 2

    def outputs(self, x: Array) -> Array:
        found = self.margins(self._rows(x)).astype(np.float32).reshape(len(x), -1)
        return np.concatenate([-found / 2, found / 2], axis=1) if self.is_binary else found

    def step(self, passes: list[Pass]) -> None:
        """Collects the gradients of a step; `end_stage` uses them."""
        size = sum(len(one.x) for one in passes)
        for one in passes:
            p, gradients = _softmax(one.logits), size * one.dlogits.astype(np.float64)
            hessians = p * (1 - p)
            if self.is_binary:
                gradients, hessians = (gradients[:, 1:] - gradients[:, :1]) / 2, hessians[:, 1:]
            hessians = np.maximum(hessians, MIN_HESSIAN)
            self._collected.append((self._rows(one.x), gradients.astype(np.float32), hessians.astype(np.float32)))

    def end_stage(self) -> None:
        """Takes one boosting step on all batches since the last one; nothing happens without any."""
        if self._collected:
            x, gradients, hessians = (np.concatenate(parts) for parts in zip(*self._collected, strict=True))
            self.boost(x, gradients, hessians)
            self._collected = []
            self._steps += 1

    def copy(self) -> Self:
        """A copy that shares the model, which is never changed in place."""
        other = copy.copy(self)
        other._collected = list(self._collected)
        return other

    # state

    def arrays(self) -> dict[str, Array]:
        return {"booster": np.frombuffer(self.to_bytes(), np.uint8), "steps": np.array(self._steps)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        self.from_bytes(arrays["booster"].tobytes())
        self._steps = int(arrays["steps"])

    def state_dict(self) -> State:
        collected = {
            str(index): as_tensors({"x": x, "gradients": g, "hessians": h})
            for index, (x, g, h) in enumerate(self._collected)
        }
        return {**super().state_dict(), "collected": collected}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        parts = [as_arrays(part) for part in state.get("collected", {}).values()]
        self._collected = [(part["x"], part["gradients"], part["hessians"]) for part in parts]

    def _rows(self, x: Array) -> Array:
        rows = x.reshape(len(x), -1)
        if rows.shape[1] != self._n_features:
            raise ConfigError(f"samples have {rows.shape[1]} numbers; this learner was made for {self._n_features}.")
        return rows


def _softmax(logits: Array) -> Array:
    return torch.softmax(torch.from_numpy(logits.astype(np.float64)), -1).numpy()
