"""A base class for NumPy models: anything that maps an array of inputs to an array of logits becomes a learner.

A subclass defines its logits (`outputs`), its update (`step`) and its arrays (`arrays`, `load_arrays`). This class
handles pending passes, anchors, tensors and state. The modes of a pass concern BatchNorm and dropout; a model with
neither returns the same logits in every mode.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedal.learners.base import Mode, State

Array = NDArray[Any]


class Pass(NamedTuple):
    """A batch (B, ...), the model's logits (B, K), and the gradient (B, K) of the mean loss w.r.t. them."""

    x: Array
    logits: Array
    dlogits: Array


class ArrayLearner(ABC):
    """A learner with a NumPy model. Inputs are float32 arrays in the shape of the data."""

    _pending: tuple[tuple[Array, Array], ...] = ()

    @abstractmethod
    def outputs(self, x: Array) -> Array:
        """The logits of a batch.  (B, ...) -> (B, K)"""

    @abstractmethod
    def step(self, passes: list[Pass]) -> None:
        """Takes one step along the sum of the passes' gradients."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """The arrays of the model, by name."""

    @abstractmethod
    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Restores what `arrays` returned; the model may keep these arrays."""

    # the Learner protocol

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        inputs = _as_array(x)
        logits = self.outputs(inputs)
        self._pending = (*self._pending, (inputs, logits))
        return _as_tensor(logits, x)

    def learn(self, *dlogits: Tensor) -> None:
        if len(dlogits) != len(self._pending):
            raise ValueError(f"learn() got {len(dlogits)} gradients for {len(self._pending)} pending passes")
        passes = [Pass(x, f, _as_array(gradient)) for (x, f), gradient in zip(self._pending, dlogits, strict=True)]
        for one in passes:
            if one.logits.shape != one.dlogits.shape:
                raise ValueError(f"learn() got a gradient of shape {one.dlogits.shape} for logits {one.logits.shape}")
        self.step(passes)
        self.forget()

    def forget(self) -> None:
        self._pending = ()

    def frozen(self, mode: Mode = "train") -> Self:
        """An anchor: a copy that is never trained."""
        return self.copy()

    def predict(self, x: Tensor) -> Tensor:
        return _as_tensor(self.outputs(_as_array(x)), x)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of an anchor.  (B, ...) -> (B, K)"""
        return self.predict(x)

    def state_dict(self) -> State:
        return {"model": as_tensors(self.arrays())}

    def load_state_dict(self, state: State) -> None:
        self.load_arrays(as_arrays(state["model"]))
        self.forget()

    def copy(self) -> Self:
        """A copy that shares no mutable state."""
        return copy.deepcopy(self)


def as_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Copies of the arrays, for a state."""
    return {name: torch.from_numpy(np.array(value, order="C")) for name, value in arrays.items()}


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Copies of the tensors of a state."""
    return {name: value.numpy().copy() for name, value in tensors.items()}


def _as_array(x: Tensor) -> Array:
    """A copy, because the caller may reuse the memory of x while the pass is pending."""
    return np.array(x.detach().cpu().numpy(), np.float32, order="C")


def _as_tensor(logits: Array, like: Tensor) -> Tensor:
    return torch.from_numpy(np.array(logits, order="C")).to(device=like.device, dtype=like.dtype)
