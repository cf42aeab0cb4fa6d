"""Any `nn.Module` as a learner: one persistent optimizer, closed-form output gradients in, one step out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedal import kernels
from fedal.errors import NotApplicableError
from fedal.learners.base import Mode, State
from fedal.learners.dropout import MaskClock, seed_dropout
from fedal.learners.fused_adam import FusedAdam
from fedal.learners.module_state import load_whole_state, whole_state
from fedal.seeding import philox_key


@dataclass(frozen=True)
class TorchSettings:
    """How a torch learner steps. All settings are in the recorded config, because each can change the result's bits."""

    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    fused: bool = True
    channels_last: bool = True
    clip: float = 0.0  # maximum norm of the whole gradient; 0 = no clipping
    bf16: bool = False  # layers compute in bfloat16 where autocast allows it; weights and outputs keep their dtype


class TorchLearner:
    """Wraps a copy of `model`; the caller's module is not changed."""

    def __init__(
        self,
        model: nn.Module,
        settings: TorchSettings | None = None,
        *,
        seed: int = 0,
        owner: str = "",
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.settings = settings or TorchSettings()
        self.module = copy.deepcopy(model).to(device, dtype).train()  # all parts in the same mode: see _in_mode
        convolves = any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self._format = torch.channels_last if convolves and self.settings.channels_last else torch.contiguous_format
        if self._format is torch.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._clock = MaskClock(philox_key(seed, "dropout", owner))
        seed_dropout(self.module, self._clock)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self._optimizer = self._new_optimizer()
        self._shared_slots: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._pending: list[Tensor] = []
        self._pending_features: Tensor | None = None
        self._spares: list[nn.Module] = []  # modules of dropped anchors, for reuse

    # the two verbs

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        self._clock.current_pass = len(self._pending)
        with _in_mode(self.module, mode), self._clock.forward(), torch.enable_grad():
            output = self._widened(self.module, x)
        self._pending.append(output)
        return output.detach()

    def learn(self, *dlogits: Tensor | None, dfeatures: Tensor | None = None) -> None:
        if len(dlogits) != len(self._pending):
            raise ValueError(f"learn() got {len(dlogits)} gradients for {len(self._pending)} pending passes")
        roots = [output for output, gradient in zip(self._pending, dlogits, strict=True) if gradient is not None]
        gradients = [gradient for gradient in dlogits if gradient is not None]
        if dfeatures is not None:
            if self._pending_features is None:
                raise ValueError("learn(dfeatures=...) needs a pending pass of logits_and_features()")
            roots.append(self._pending_features)
            gradients.append(dfeatures)
        torch.autograd.backward(roots, gradients)
        self.forget()
        self.step()

    def step(self) -> None:
        """Takes one optimizer step along the parameters' current gradients."""
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()  # now rather than before the next step, so that a waiting client holds no gradients
        self._clock.step += 1

    def forget(self) -> None:
        self._pending.clear()
        self._pending_features = None
        self._clock.current_pass = 0

    def frozen(self, mode: Mode = "train") -> TorchFrozen:
        return TorchFrozen(self, mode)

    def predict(self, x: Tensor) -> Tensor:
        with _in_mode(self.module, "eval"), torch.no_grad():
            return self._widened(self.module, x)

    # optional: features, weights

    @property
    def feature_width(self) -> int:
        width = getattr(self.module, "feature_width", None)
        if not isinstance(width, int) or not hasattr(self.module, "features") or not hasattr(self.module, "classify"):
            raise NotApplicableError(
                f"{type(self.module).__name__} has no features: add methods features(x) and classify(features) "
                "and an integer attribute feature_width, or choose a method that needs outputs only."
            )
        return width

    def logits_and_features(self, x: Tensor, mode: Mode = "train") -> tuple[Tensor, Tensor]:
        if self.feature_width and self._pending_features is not None:
            raise ValueError("only one pass with features can be pending: call learn() or forget() first")
        self._clock.current_pass = len(self._pending)
        with _in_mode(self.module, mode), self._clock.forward(), torch.enable_grad():
            features = self._widened(self.module.features, x)  # type: ignore[arg-type]
            output = self._widened(self.module.classify, features)  # type: ignore[arg-type]
        self._pending_features = features
        self._pending.append(output)
        return output.detach(), features.detach()

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.module.load_state_dict(weights)  # copies in place, which keeps memory formats

    def reset_optimizer(self) -> None:
        self._optimizer = self._new_optimizer()

    # state

    def state_dict(self) -> State:
        """A snapshot that later learning does not change."""
        slots = {
            str(index): {
                name: value.clone() for name, value in self._optimizer.state[parameter].items() if value is not None
            }
            for index, parameter in enumerate(self.parameters)
            if parameter in self._optimizer.state
        }
        return {"model": whole_state(self.module), "optimizer": slots, "step": self._clock.step}

    def load_state_dict(self, state: State) -> None:
        load_whole_state(self.module, state["model"])
        if not self._shared_slots:
            self.reset_optimizer()
        for index, parameter in enumerate(self.parameters):
            saved = state["optimizer"].get(str(index), {})
            if self._shared_slots:
                for name, slot in self._shared_slots[parameter].items():
                    slot.copy_(saved[name]) if saved else slot.zero_()
            elif saved:
                counted_on = parameter.device if self.settings.fused else "cpu"  # as in torch's optimizers
                # Moments need their parameter's memory format: the fused kernel reads both in the same order.
                self._optimizer.state[parameter] = {
                    name: value.to(counted_on, copy=True)
                    if name == "step"
                    else torch.empty_like(parameter.detach()).copy_(value)
                    for name, value in saved.items()
                }
        self._clock.step = int(state["step"])
        self.forget()

    # as a member of a stack (see stacked/learner.py)

    def share_optimizer_state(self, parameter: nn.Parameter, slots: dict[str, Tensor]) -> None:
        """Makes the state of this parameter a part of the stack's state, read and written in place."""
        self._shared_slots[parameter] = self._optimizer.state[parameter] = slots

    def count_step(self) -> None:
        """Counts a step that the stack took for this learner."""
        self._clock.step += 1

    # internals

    def _new_optimizer(self) -> torch.optim.Optimizer | FusedAdam:
        s = self.settings
        if s.optimizer == "adam" and s.fused:
            return FusedAdam(self.parameters, s.lr, s.weight_decay)
        if s.optimizer == "adam":
            return torch.optim.Adam(self.parameters, lr=s.lr, weight_decay=s.weight_decay)
        return torch.optim.SGD(
            self.parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, fused=s.fused
        )

    def _widened(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The output of a part of the model, in the dtype of x whatever it computes in."""
        x = x.contiguous(memory_format=self._format) if x.dim() == 4 else x.contiguous()
        if not self.settings.bf16:
            return function(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return function(x).to(x.dtype)


class TorchFrozen:
    """An anchor: an earlier model of the learner. When it is dropped, the next anchor reuses its module."""

    def __init__(self, learner: TorchLearner, mode: Mode) -> None:
        self._spares, self._mode, self._widened = learner._spares, mode, learner._widened
        self._clock = learner._clock
        self._module = learner._spares.pop() if learner._spares else copy.deepcopy(learner.module)
        with torch.no_grad():
            current = [*learner.module.parameters(), *learner.module.buffers()]
            mine = [*self._module.parameters(), *self._module.buffers()]
            kernels.copy_to_each(mine, current)

    def __call__(self, x: Tensor) -> Tensor:
        mode: Mode = "frozen" if self._mode == "train" else self._mode  # like the student, but without changing buffers
        with _in_mode(self._module, mode), self._clock.forward(), torch.no_grad():
            return self._widened(self._module, x)

    def state_dict(self) -> State:
        return whole_state(self._module)

    def load_state_dict(self, state: State) -> None:
        load_whole_state(self._module, state)

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            self._spares.append(self._module)


@contextmanager
def _in_mode(module: nn.Module, mode: Mode) -> Iterator[None]:
    """The one place that decides what BatchNorm and dropout do in a pass.

    Unless buffers may change, the pass works on copies of them. The originals stay unchanged, and a pending pass keeps
    the values that it was computed with, which backward reads again, whatever later passes do.
    """
    training = mode != "eval"
    if module.training != training:
        module.train(training)
    slots = [] if mode == "train" else _buffer_slots(module)
    copies: dict[int, Tensor] = {}
    for buffers, name, buffer in slots:
        buffers[name] = copies.setdefault(id(buffer), buffer.clone())
    try:
        yield
    finally:
        for buffers, name, buffer in slots:
            buffers[name] = buffer


def _buffer_slots(module: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    return [
        (part._buffers, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
