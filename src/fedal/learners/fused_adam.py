"""Adam through torch's fused kernel, without the machinery around `torch.optim.Adam`.

It uses the same kernel, where torch has it (see kernels.py), and gives bit-identical results, which a test checks.
`torch.optim` imports the compiler with its first optimizer, which costs every process two seconds; on a small net, it
also spends more time in Python than in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedal import kernels


class FusedAdam:
    """The parts of an optimizer that a learner uses: `state`, `zero_grad`, `step`, and the `lr` of one group."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float = 0.0, *, decoupled: bool = False
    ) -> None:
        """`decoupled` is AdamW: the weights shrink by lr x weight_decay, and the moments do not see it."""
        self._parameters, self._weight_decay, self._decoupled = parameters, weight_decay, decoupled
        self.param_groups = [{"lr": lr}]  # as in torch.optim, so that a schedule can set it
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        active = [(parameter, parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        if not active:
            return
        slots = [self.slots(parameter) for parameter, _ in active]
        if self._decoupled and self._weight_decay:
            for parameter, _ in active:
                parameter.mul_(1 - self.param_groups[0]["lr"] * self._weight_decay)
        steps = [slot["step"] for slot in slots]
        kernels.add_to_each(steps, 1)
        kernels.adam(
            [parameter.data for parameter, _ in active],
            [gradient for _, gradient in active],
            [slot["exp_avg"] for slot in slots],
            [slot["exp_avg_sq"] for slot in slots],
            [],
            steps,
            lr=self.param_groups[0]["lr"],
            weight_decay=0.0 if self._decoupled else self._weight_decay,
            **kernels.PLAIN_ADAM,
        )

    @torch.no_grad()
    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, steps: Tensor) -> None:
        """A step on some rows, the one that is number `steps` (n,) of each; all other rows and moments stand still."""
        slots, (beta1, beta2, eps) = self.slots(parameter), (kernels.PLAIN_ADAM[k] for k in ("beta1", "beta2", "eps"))
        count = steps.view(-1, *[1] * (gradient.dim() - 1))
        value = parameter.data[rows]
        gradient = gradient + self._weight_decay * value if self._weight_decay else gradient
        m = slots["exp_avg"][rows].lerp_(gradient, 1 - beta1)
        v = slots["exp_avg_sq"][rows].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = (self.param_groups[0]["lr"] / (1 - beta1**count)).to(value.dtype)
        spread = (v.sqrt() / (1 - beta2**count).sqrt().to(value.dtype)).add_(eps)
        for whole, part in (
            (slots["exp_avg"], m),
            (slots["exp_avg_sq"], v),
            (parameter.data, value - size * m / spread),
        ):
            whole[rows] = part

    def slots(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The step count and both moments of a parameter; zeros before its first step."""
        found = self.state.get(parameter)  # one look: a tensor's hash is computed in Python
        if found is None:
            found = self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
        return found
