"""Several torch learners of one architecture behind the interface of one, with a leading client axis on every tensor.

The parameters, buffers and optimizer states of the members are views of the stack's. So each member can be evaluated,
saved and restored on its own, in the same format as if it had never been stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor

from fedal import kernels
from fedal.learners.base import Mode, State
from fedal.learners.dropout import MaskClock
from fedal.learners.stacked.adam import StackedAdam
from fedal.learners.stacked.dropout import Dropout
from fedal.learners.stacked.layers import Back, ClassMajor
from fedal.learners.stacked.net import StackedNet
from fedal.learners.torch_learner import TorchLearner


class StackedLearner:
    """Learns for all `members` at once: logits are (G, B, K), and so is the gradient that comes back.

    `as_single` asks for the bits that the members have alone; without it, more is done for speed. `apart` is for
    members that have not taken the same number of steps. Raises TypeError if the members cannot be stacked.
    """

    def __init__(
        self, members: Sequence[TorchLearner], input_rank: int, *, as_single: bool = False, apart: bool = False
    ) -> None:
        self._members = list(members)
        settings = self._members[0].settings
        self._net = StackedNet([member.module for member in self._members], input_rank, as_single)
        self._clocks = _Clocks(self._members, self._net)
        self._optimizer = StackedAdam(
            self._net.parameters,
            len(self._members),
            settings.lr,
            settings.weight_decay,
            self._net.as_single,
            apart=apart,
        )
        self._counters = [member.clock for member in self._members]  # of steps
        self._pending: list[list[Back]] = []
        self._spares: list[StackedNet] = []  # nets of dropped anchors, for reuse
        for number, member in enumerate(self._members):
            for index, own in enumerate(member.parameters):
                own.data = self._net.part(self._net.parameters[index].data, number, own)
                moments = {
                    name: self._net.part(whole, number, own) for name, whole in self._optimizer.moments(index).items()
                }
                member.share_optimizer_state(own, {"step": self._optimizer.count(number), **moments})
            member.share_buffers([self._net.part(whole, number, own) for whole, own in self._with_own(member)])

    def _with_own(self, member: TorchLearner) -> list[tuple[Tensor, Tensor]]:
        return [*zip(self._net.buffers, member.module.buffers(), strict=True)]

    @property
    def is_class_major(self) -> bool:
        """Whether the values of a class are neighbours in its logits."""
        return isinstance(self._net.layers[-1], ClassMajor)

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        with self._clocks.at(len(self._pending)):
            output, backs = self._net.recorded(x, mode)
        self._pending.append(backs)
        return output

    def learn(self, *dlogits: Tensor) -> None:
        if len(dlogits) != len(self._pending):
            raise ValueError(f"learn() got {len(dlogits)} gradients for {len(self._pending)} pending passes")
        for backs, gradient in zip(self._pending, dlogits, strict=True):
            self._net.back(backs, gradient)
        self.forget()
        self._optimizer.step()
        for clock in self._counters:
            clock.step += 1

    def forget(self) -> None:
        self._pending.clear()
        self._clocks.reset()

    def frozen(self, mode: Mode = "train") -> StackedFrozen:
        return StackedFrozen(self._net, self._spares, self._clocks, "frozen" if mode == "train" else mode)

    def predict(self, x: Tensor) -> Tensor:
        return self._net(x, "eval")

    def state_dict(self) -> State:
        return {str(index): member.state_dict() for index, member in enumerate(self._members)}

    def load_state_dict(self, state: State) -> None:
        for index, member in enumerate(self._members):
            member.load_state_dict(state[str(index)])
        self.forget()


class _Clocks:
    """The members' counters for dropout masks; without dropout they are not needed."""

    def __init__(self, members: Sequence[TorchLearner], net: StackedNet) -> None:
        needed = any(isinstance(layer, Dropout) for layer in net.layers)
        self._clocks: list[MaskClock] = [member.clock for member in members] if needed else []

    def reset(self) -> None:
        for clock in self._clocks:
            clock.current_pass = 0

    def at(self, current_pass: int | None = None) -> AbstractContextManager[None]:
        """Encloses a forward pass; without a number, it is the students' newest one."""
        return self._forward(current_pass) if self._clocks else nullcontext()

    @contextmanager
    def _forward(self, current_pass: int | None) -> Iterator[None]:
        with ExitStack() as passes:
            for clock in self._clocks:
                if current_pass is not None:
                    clock.current_pass = current_pass
                passes.enter_context(clock)
            yield


class StackedFrozen:
    """An anchor: earlier models of all members. When it is dropped, the next anchor reuses its net."""

    def __init__(self, net: StackedNet, spares: list[StackedNet], clocks: _Clocks, mode: Mode) -> None:
        self._spares, self._clocks, self._mode = spares, clocks, mode
        self._net = spares.pop() if spares else net.again()
        self._fill([*net.parameters, *net.buffers])

    def __call__(self, x: Tensor) -> Tensor:
        with self._clocks.at():
            return self._net(x, self._mode)

    def state_dict(self) -> State:
        return {str(index): value.detach().clone() for index, value in enumerate(self._values())}

    def load_state_dict(self, state: State) -> None:
        self._fill(list(state.values()))

    def _values(self) -> list[Tensor]:
        return [*self._net.parameters, *self._net.buffers]

    @torch.no_grad()
    def _fill(self, values: Sequence[Tensor]) -> None:
        kernels.copy_to_each(self._values(), [*values])

    def __del__(self) -> None:
        if hasattr(self, "_net"):
            self._spares.append(self._net)
