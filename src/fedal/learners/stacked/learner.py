"""Several torch learners of one architecture behind the interface of one, with a leading client axis on every tensor.

The parameters and optimizer states of the members are views of the stack's. So each member can be evaluated, saved and
restored on its own, in the same format as if it had never been stacked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedal import kernels
from fedal.learners.base import Mode, State
from fedal.learners.fused_adam import FusedAdam
from fedal.learners.stacked.net import StackedNet
from fedal.learners.torch_learner import TorchLearner


class StackedLearner:
    """Learns for all `members` at once: logits are (G, B, K), and so is the gradient that comes back."""

    def __init__(self, members: Sequence[TorchLearner], input_rank: int) -> None:
        self._members = list(members)
        settings = self._members[0].settings
        self._net = StackedNet([member.module for member in self._members], input_rank)
        self._optimizer = FusedAdam(self._net.parameters, settings.lr, settings.weight_decay)
        self._pending: list[Tensor] = []
        self._spares: list[StackedNet] = []  # nets of dropped anchors, for reuse
        for index, member in enumerate(self._members):
            for whole, own in zip(self._net.parameters, member.parameters, strict=True):
                slots = self._optimizer.slots(whole)
                own.data = self._net.part(whole.data, index)
                member.share_optimizer_state(
                    own,
                    {name: slot if name == "step" else self._net.part(slot, index) for name, slot in slots.items()},
                )

    def logits(self, x: Tensor, mode: Mode = "train") -> Tensor:
        """All modes are equal: no layer that can be stacked depends on the mode.  -> (G, B, K)"""
        with torch.enable_grad():
            output = self._net(x)
        self._pending.append(output)
        return output.detach()

    def learn(self, *dlogits: Tensor) -> None:
        if len(dlogits) != len(self._pending):
            raise ValueError(f"learn() got {len(dlogits)} gradients for {len(self._pending)} pending passes")
        torch.autograd.backward(self._pending, dlogits)
        self._optimizer.step()
        self._optimizer.zero_grad()  # now rather than before the next step, so that a waiting client holds no gradients
        self.forget()
        for member in self._members:
            member.count_step()

    def forget(self) -> None:
        self._pending.clear()

    def frozen(self, mode: Mode = "train") -> StackedFrozen:
        return StackedFrozen(self._net, self._spares)

    def predict(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._net(x)

    def state_dict(self) -> State:
        return {str(index): member.state_dict() for index, member in enumerate(self._members)}

    def load_state_dict(self, state: State) -> None:
        for index, member in enumerate(self._members):
            member.load_state_dict(state[str(index)])
        self.forget()


class StackedFrozen:
    """An anchor: earlier models of all members. When it is dropped, the next anchor reuses its net."""

    def __init__(self, net: StackedNet, spares: list[StackedNet]) -> None:
        self._spares = spares
        self._net = spares.pop() if spares else net.frozen_copy()
        self._fill(net.parameters)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._net(x)

    def state_dict(self) -> State:
        return {str(index): parameter.clone() for index, parameter in enumerate(self._net.parameters)}

    def load_state_dict(self, state: State) -> None:
        self._fill(list(state.values()))

    @torch.no_grad()
    def _fill(self, values: Sequence[Tensor]) -> None:
        kernels.copy_to_each([*self._net.parameters], [*values])

    def __del__(self) -> None:
        if hasattr(self, "_net"):
            self._spares.append(self._net)
