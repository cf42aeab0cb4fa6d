"""A model is a black box with two verbs: `logits` says what it thinks, `learn` moves it along a gradient in that.

Every method is mathematics on outputs, so this protocol is all a method ever sees of a model. Anything with these verbs
can join: a PyTorch module, a JAX function, a scikit-learn regressor, thirty lines of numpy.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from fedal.lazy import Tensor, torch

Mode = Literal["train", "eval", "frozen"]
"""What BatchNorm does in a pass. `train`: batch statistics, the running averages move. `frozen`: batch statistics, the
running averages stay. `eval`: the running averages are used and stay (and dropout is off)."""

State = dict[str, Any]
"""Nested dicts of tensors, numbers, strings and lists: arrays and JSON, never pickle. A learner keeps what the trained
model is, without optimizer, under `"model"`: that part is exported at the end of a run."""


def copied(state: Any, device: torch.device | str) -> Any:
    """A state, or a part of one, in tensors of its own on `device`: those of a checkpoint are pages of a file."""
    if isinstance(state, dict):
        return {name: copied(part, device) for name, part in state.items()}
    return state.to(device, copy=True) if isinstance(state, torch.Tensor) else state


VERBS = ("logits", "learn", "forget", "frozen", "predict", "state_dict", "load_state_dict")


class Frozen(Protocol):
    """A fixed copy of a learner's former self."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Learner(Protocol):
    """What a method may do with a model."""

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        """Detached logits of a batch; the pass stays pending until `learn` or `forget`.  -> (B, K)"""

    def learn(self, *dlogits: Tensor) -> None:
        """ONE optimizer step for all pending passes: a gradient of the mean loss per pass, in call order."""

    def forget(self) -> None:
        """Drop pending passes: the exchange failed or the round is rolled back."""

    def frozen(self, mode: Mode = "train") -> Frozen:
        """A fixed copy of the present self, used in `mode`; every buffer is restored after each call."""

    def predict(self, x: Tensor) -> Tensor:
        """Logits in evaluation mode; allowed while a pass is pending."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class FeatureLearner(Learner, Protocol):
    """A learner that also shows the vector before its last layer, for methods that declare they need `features`."""

    feature_width: int

    def logits_and_features(self, x: Tensor, mode: Mode = "train") -> tuple[Tensor, Tensor]: ...

    def learn(self, *dlogits: Tensor | None, dfeatures: Tensor | None = None) -> None:
        """As `Learner.learn`; `dfeatures` belongs to the pending pass that returned features.

        None for a pass whose logits have no gradient.
        """


class WeightLearner(Learner, Protocol):
    """A learner whose parameters may be read and set, for methods that declare they need `weights`."""

    def weights(self) -> dict[str, Tensor]: ...

    def load_weights(self, weights: dict[str, Tensor]) -> None: ...

    def reset_optimizer(self) -> None: ...
