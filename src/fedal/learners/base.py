"""A model is a black box with two verbs: `logits` computes outputs, `learn` steps along a gradient w.r.t. them.

Every method computes with outputs, so this protocol is all that a method sees of a model. Anything that implements it
can take part: a PyTorch module, a JAX function, a scikit-learn regressor, thirty lines of NumPy.

Shapes: B samples, K classes, d features; `...` is the input shape of one sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from fedal.lazy import Tensor, torch

Mode = Literal["train", "eval", "frozen"]
"""What BatchNorm does in a pass. `train`: uses batch statistics and updates the running averages. `frozen`: uses batch
statistics and leaves the running averages unchanged. `eval`: uses the running averages unchanged, without dropout."""

Layer = Literal["inputs", "features"]
"""Where values enter a model: at its start, or at its last layer."""

State = dict[str, Any]
"""Nested dicts of tensors, numbers, strings and lists: arrays and JSON, never pickle. A learner stores the trained
model, without the optimizer, under `"model"`: that part is exported at the end of a run."""


def copied(state: Any, device: torch.device | str) -> Any:
    """A deep copy of a state, or part of one, on `device`: a checkpoint's tensors are memory-mapped from a file."""
    if isinstance(state, dict):
        return {name: copied(part, device) for name, part in state.items()}
    return state.to(device, copy=True) if isinstance(state, torch.Tensor) else state


VERBS = ("logits", "learn", "forget", "frozen", "predict", "state_dict", "load_state_dict")


class Frozen(Protocol):
    """A fixed copy of a learner's earlier model."""

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of a batch.  (B, ...) -> (B, K)"""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Learner(Protocol):
    """Everything that a method may do with a model."""

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        """Detached logits of a batch; the pass stays pending until `learn` or `forget`.  (B, ...) -> (B, K)"""

    def learn(self, *dlogits: Tensor) -> None:
        """Takes ONE optimizer step for all pending passes.

        Each gradient (B, K) is that of the mean loss w.r.t. the logits of one pass, in call order.
        """

    def forget(self) -> None:
        """Drops pending passes, because the exchange failed or the round is rolled back."""

    def frozen(self, mode: Mode = "train") -> Frozen:
        """A fixed copy of the current model, evaluated in `mode`; its buffers never change."""

    def predict(self, x: Tensor) -> Tensor:
        """Logits in evaluation mode; allowed while a pass is pending.  (B, ...) -> (B, K)"""

    def state_dict(self) -> State:
        """A snapshot of everything that later steps depend on."""

    def load_state_dict(self, state: State) -> None:
        """Restores what `state_dict` returned. Copies its tensors."""


class StageLearner(Learner, Protocol):
    """A learner that collects the gradients of a stage, such as boosted trees, and learns from them at its end."""

    def end_stage(self) -> None:
        """Learns from what was collected since the last call. Without any gradients it does nothing."""


def end_stage(learner: Learner) -> None:
    """Lets a learner learn what it collected in a stage of tau steps; most have learned in every step already."""
    if hasattr(learner, "end_stage"):
        learner.end_stage()


class FeatureLearner(Learner, Protocol):
    """A learner that also returns the vector before its last layer, for methods that declare the need `features`."""

    feature_width: int  # d

    def logits_and_features(self, x: Tensor, mode: Mode = "train") -> tuple[Tensor, Tensor]:
        """As `logits`, with the features of the same pass.  (B, ...) -> (B, K), (B, d)"""

    def learn(self, *dlogits: Tensor | None, dfeatures: Tensor | None = None) -> None:
        """As `Learner.learn`; `dfeatures` (B, d) is the gradient w.r.t. the features of the pending pass that has them.

        Pass None for a pass without a gradient w.r.t. its logits.
        """

    def logits_of_features(self, features: Tensor, mode: Mode = "train") -> Tensor:
        """As `logits`, of given features: the pass covers only the last layer.  (B, d) -> (B, K)"""


Back = Callable[[Tensor], Tensor]
"""A gradient w.r.t. logits -> the gradient w.r.t. the values that the logits were computed from."""


class InputLearner(Learner, Protocol):
    """A learner, or an anchor, that others can learn through, for methods that declare the need `input-gradients`."""

    def through(self, x: Tensor, at: Layer = "inputs") -> tuple[Tensor, Back]:
        """Logits in evaluation mode, and the way back from them to x; changes nothing, and no pass stays pending.

        With `at="features"`, x is what the last layer gets.  (B, ...) -> (B, K), (B, K) -> (B, ...)
        """


class WeightLearner(Learner, Protocol):
    """A learner whose parameters can be read and set, for methods that declare the need `weights`."""

    def weights(self) -> dict[str, Tensor]:
        """Copies of all parameters and buffers, by name."""

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Sets all parameters and buffers, with the names and shapes of `weights()`."""

    def reset_optimizer(self) -> None:
        """Discards the optimizer's state, such as its moments."""


class GradientLearner(WeightLearner, Protocol):
    """A learner that takes gradients w.r.t. its weights apart, for methods that declare the need `weight-gradients`."""

    def trainable(self) -> dict[str, Tensor]:
        """Copies of the weights that `learn` changes, by name; buffers are not among them."""

    def set_trainable(self, weights: dict[str, Tensor]) -> None:
        """Sets weights of `trainable()`; buffers and the optimizer stay as they are."""

    def learn(self, *dlogits: Tensor, dweights: dict[str, Tensor] | None = None) -> None:
        """As `Learner.learn`; `dweights` is added to the gradient w.r.t. the weights, or is all of it."""

    def weight_gradient(self, *dlogits: Tensor) -> dict[str, Tensor]:
        """What `learn` would step along, by name. Takes no step; the pending passes end."""

    def squared_gradients(self, x: Tensor, dlogits: Tensor) -> dict[str, Tensor]:
        """The mean over samples of the squared gradient w.r.t. each weight, in evaluation mode.

        Row i of `dlogits` is the gradient of sample i's own loss.  (B, ...), (B, K)
        """
