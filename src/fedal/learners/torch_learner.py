"""Any `nn.Module` as a learner: one persistent optimizer, closed-form output gradients in, one step out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedal import kernels
from fedal.errors import NotApplicableError
from fedal.learners.base import Back, Layer, Mode, State
from fedal.learners.dropout import MaskClock, seed_dropout
from fedal.learners.fused_adam import FusedAdam
from fedal.learners.module_gradients import entered, mean_squares, passed
from fedal.learners.module_state import load_whole_state, whole_state
from fedal.learners.plain_net import Pass, PlainNet
from fedal.learners.schedules import Schedule, rate
from fedal.models.logits_of import logits_of
from fedal.seeding import philox_key


@dataclass(frozen=True)
class TorchSettings:
    """How a torch learner steps. All settings are in the recorded config, because each can change the result's bits."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    fused: bool = True
    channels_last: bool = True
    clip: float = 0.0  # maximum norm of the whole gradient; 0 = no clipping
    schedule: Schedule = "constant"
    schedule_steps: float = 0.0  # steps until the step size is lr x schedule_end
    schedule_end: float = 0.01
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
        self.clock = MaskClock(philox_key(seed, "dropout", owner))
        seed_dropout(self.module, self.clock)
        self._trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.parameters = [*self._trainable.values()]
        self._optimizer = self._new_optimizer()
        self._shared_slots: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._plain = None if self.settings.bf16 else PlainNet.of(self.module)  # computes without autograd, if it can
        self._pending: list[Any] = []  # outputs with their graphs; of a plain net, its passes
        self._pending_features: Tensor | None = None
        self._spares: list[nn.Module] = []  # modules of dropped anchors, for reuse

    # the two verbs

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        if self._plain is not None:
            return self._noted(*self._plain.recorded(x))
        self.clock.current_pass = len(self._pending)
        with _in_mode(self.module, mode), self.clock, torch.enable_grad():
            output = self._widened(self.module, x)
        self._pending.append(output)
        return output.detach()

    def learn(
        self,
        *dlogits: Tensor | None,
        dfeatures: Tensor | None = None,
        dweights: Mapping[str, Tensor] | None = None,
    ) -> None:
        if len(dlogits) != len(self._pending):
            raise ValueError(f"learn() got {len(dlogits)} gradients for {len(self._pending)} pending passes")
        if dfeatures is not None and self._pending_features is None:
            raise ValueError("learn(dfeatures=...) needs a pending pass of logits_and_features()")
        if self._plain is not None:
            self._plain.add_gradients(self._pending, dlogits, dfeatures)
        else:
            self._backward(dlogits, dfeatures)
        self.forget()
        for name, gradient in (dweights or {}).items():
            parameter = self._trainable[name]
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
        self.step()

    def _backward(self, dlogits: Sequence[Tensor | None], dfeatures: Tensor | None) -> None:
        roots = [output for output, gradient in zip(self._pending, dlogits, strict=True) if gradient is not None]
        gradients = [gradient for gradient in dlogits if gradient is not None]
        if dfeatures is not None and self._pending_features is not None:
            roots.append(self._pending_features)
            gradients.append(dfeatures)
        if roots:
            torch.autograd.backward(roots, gradients)

    def step(self) -> None:
        """Takes one optimizer step along the parameters' current gradients."""
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        if self.settings.schedule != "constant":
            s = self.settings
            self.set_lr(s.lr * rate(s.schedule, self.clock.step, s.schedule_steps, s.schedule_end))
        self._optimizer.step()
        self._optimizer.zero_grad()  # now rather than before the next step, so that a waiting client holds no gradients
        self.clock.step += 1

    def set_lr(self, lr: float) -> None:
        """The step size from now on. It is not part of the state: the caller that chose it keeps it."""
        self._optimizer.param_groups[0]["lr"] = lr

    @torch.no_grad()
    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, steps: Tensor) -> None:
        """Takes a step on some rows of a parameter; `steps` (n,) counts the steps of each row, with this one."""
        if isinstance(self._optimizer, FusedAdam):
            self._optimizer.step_rows(parameter, rows, gradient, steps)
        elif self.settings.optimizer == "sgd" and not self.settings.momentum and not self.settings.weight_decay:
            parameter.data.index_add_(0, rows, gradient, alpha=-self._optimizer.param_groups[0]["lr"])
        else:
            raise NotImplementedError(f"{self.settings}: rows step with fused Adam or plain SGD only")

    def forget(self) -> None:
        self._pending.clear()
        self._pending_features = None
        self.clock.current_pass = 0

    def frozen(self, mode: Mode = "train") -> TorchFrozen:
        return TorchFrozen(self, mode)

    def predict(self, x: Tensor, mode: Literal["eval", "frozen"] = "eval") -> Tensor:
        if self._plain is not None:
            return self._plain(x)
        with _in_mode(self.module, mode), self.clock, torch.no_grad():
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
        if self._plain is not None and self._plain.head is not None:
            output, self._pending_features, done = self._plain.recorded_features(x)
            return self._noted(output, done), self._pending_features
        self.clock.current_pass = len(self._pending)
        with _in_mode(self.module, mode), self.clock, torch.enable_grad():
            features = self._widened(self.module.features, x)  # type: ignore[arg-type]
            output = self._widened(self.module.classify, features)  # type: ignore[arg-type]
        self._pending_features = features
        self._pending.append(output)
        return output.detach(), features.detach()

    def logits_of_features(self, features: Tensor, mode: Mode = "train") -> Tensor:
        if self._plain is not None and self._plain.head is not None:
            return self._noted(*self._plain.recorded(features, self._plain.head))
        self.clock.current_pass = len(self._pending)
        with _in_mode(self.module, mode), self.clock, torch.enable_grad():
            output = self._widened(self.module.classify, features)  # type: ignore[arg-type]
        self._pending.append(output)
        return output.detach()

    def through(self, x: Tensor, at: Layer = "inputs") -> tuple[Tensor, Back]:
        return _through(self.module, self._plain, self._widened, x, at)

    def trainable(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._trainable.items()}

    def set_trainable(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            kernels.copy_to_each([self._trainable[name] for name in weights], [*weights.values()])

    def weight_gradient(self, *dlogits: Tensor) -> dict[str, Tensor]:
        if self._plain is not None:
            self._plain.add_gradients(self._pending, dlogits)
            found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            self._optimizer.zero_grad()
        else:
            found = [*torch.autograd.grad(self._pending, self.parameters, dlogits, materialize_grads=True)]
        self.forget()
        return dict(zip(self._trainable, found, strict=True))

    def squared_gradients(self, x: Tensor, dlogits: Tensor) -> dict[str, Tensor]:
        with _in_mode(self.module, "eval"), torch.enable_grad():
            found = mean_squares(partial(self._widened, self.module), self.parameters, x, dlogits)
        return dict(zip(self._trainable, found, strict=True))

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
        return {"model": whole_state(self.module), "optimizer": slots, "step": self.clock.step}

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
        self.clock.step = int(state["step"])
        self.forget()

    # as a member of a stack (see stacked/learner.py)

    def stand_for(self, seed: int, owner: str) -> None:
        """Draws the masks of another client, whose state is to be loaded."""
        self.clock.key = philox_key(seed, "dropout", owner)

    def share_optimizer_state(self, parameter: nn.Parameter, slots: dict[str, Tensor]) -> None:
        """Makes the state of this parameter a part of the stack's state, read and written in place."""
        self._shared_slots[parameter] = self._optimizer.state[parameter] = slots

    def share_buffers(self, buffers: Sequence[Tensor]) -> None:
        """Makes the buffers of the module, in its order, parts of the stack's."""
        for (own, name, _), shared in zip(_buffer_slots(self.module), buffers, strict=True):
            own[name] = shared

    # internals

    def _new_optimizer(self) -> torch.optim.Optimizer | FusedAdam:
        s = self.settings
        if s.optimizer != "sgd" and s.fused:
            return FusedAdam(self.parameters, s.lr, s.weight_decay, decoupled=s.optimizer == "adamw")
        if s.optimizer == "adamw":
            return torch.optim.AdamW(self.parameters, lr=s.lr, weight_decay=s.weight_decay)
        if s.optimizer == "adam":
            return torch.optim.Adam(self.parameters, lr=s.lr, weight_decay=s.weight_decay)
        return torch.optim.SGD(
            self.parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, fused=s.fused
        )

    def _noted(self, output: Tensor, done: Pass) -> Tensor:
        self._pending.append(done)
        return output

    def _widened(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The output of a part of the model, in the dtype of x whatever it computes in."""
        x = x.contiguous(memory_format=self._format) if x.dim() == 4 else x.contiguous()
        if not self.settings.bf16:
            return logits_of(function(x))
        with torch.autocast(x.device.type, torch.bfloat16):
            return logits_of(function(x)).to(x.dtype)


class TorchFrozen:
    """An anchor: an earlier model of the learner. When it is dropped, the next anchor reuses its module."""

    def __init__(self, learner: TorchLearner, mode: Mode) -> None:
        self._spares, self._mode, self._widened = learner._spares, mode, learner._widened
        self.clock = learner.clock
        self._module = learner._spares.pop() if learner._spares else copy.deepcopy(learner.module)
        self._plain = None if learner.settings.bf16 else PlainNet.of(self._module)
        with torch.no_grad():
            kernels.copy_to_each(_values(self._module), _values(learner.module))

    def __call__(self, x: Tensor) -> Tensor:
        if self._plain is not None:
            return self._plain(x)
        mode: Mode = "frozen" if self._mode == "train" else self._mode  # like the student, but without changing buffers
        with _in_mode(self._module, mode), self.clock, torch.no_grad():
            return self._widened(self._module, x)

    def through(self, x: Tensor, at: Layer = "inputs") -> tuple[Tensor, Back]:
        return _through(self._module, self._plain, self._widened, x, at)

    def state_dict(self) -> State:
        return whole_state(self._module)

    def load_state_dict(self, state: State) -> None:
        load_whole_state(self._module, state)

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            self._spares.append(self._module)


class _in_mode:
    """The one place that decides what BatchNorm and dropout do in a pass.

    Unless buffers may change, the pass works on copies of them. The originals stay unchanged, and a pending pass keeps
    the values that it was computed with, which backward reads again, whatever later passes do.
    """

    def __init__(self, module: nn.Module, mode: Mode) -> None:
        self._module, self._mode = module, mode

    def __enter__(self) -> None:
        module, training = self._module, self._mode != "eval"
        if module.training != training:
            module.train(training)
        self._slots = [] if self._mode == "train" or not _has_buffers(module) else _buffer_slots(module)
        copies: dict[int, Tensor] = {}
        for buffers, name, buffer in self._slots:
            buffers[name] = copies.setdefault(id(buffer), buffer.clone())

    def __exit__(self, *error: object) -> None:
        for buffers, name, buffer in self._slots:
            buffers[name] = buffer


def _through(
    module: nn.Module, plain: PlainNet | None, widened: Callable[..., Tensor], x: Tensor, at: Layer
) -> tuple[Tensor, Back]:
    """Logits in evaluation mode, and the way back to x."""
    begin = 0 if plain is None or at == "inputs" else plain.head
    if plain is not None and begin is not None:
        output, done = plain.recorded(x, begin)
        return output, lambda gradient: plain.input_gradient(done, gradient).view(x.shape)
    with _in_mode(module, "eval"):
        return passed(x, partial(widened, entered(module, at)))


def _parts(module: nn.Module) -> list[nn.Module]:
    """As `module.modules()`, but with repetitions: a tenth of its time, and small models run thousands of passes."""
    parts = [module]
    for part in parts:
        parts.extend([child for child in part._modules.values() if child is not None])
    return parts


def _has_buffers(module: nn.Module) -> bool:
    return any(part._buffers for part in _parts(module))


def _values(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in an order that a copy of the module shares."""
    held = [each for part in _parts(module) for each in (part._parameters, part._buffers) if each]
    return [value for values in held for value in values.values() if value is not None]


def _buffer_slots(module: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    return [
        (part._buffers, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
