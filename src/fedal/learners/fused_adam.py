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

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        self._parameters, self._weight_decay = parameters, weight_decay
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
            weight_decay=self._weight_decay,
            **kernels.PLAIN_ADAM,
        )

    def slots(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The step count and both moments of a parameter; zeros before its first step."""
        if parameter not in self.state:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
        return self.state[parameter]
