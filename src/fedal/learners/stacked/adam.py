"""One Adam step for all members of a stack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedal import kernels

LANES = 16  # numbers in the widest vector register: torch's kernel computes what is left over in another way


class StackedAdam:
    """As FusedAdam, for parameters of G members that step together.

    Members that always did share one count of steps; with `apart`, each has its own and is stepped by itself.
    `as_single` gives the bits of single clients: if the size of a parameter is not a multiple of `LANES`, it is stepped
    member by member, so that the kernel treats each of its numbers as it does in a single client.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        size: int,
        lr: float,
        weight_decay: float,
        as_single: bool,
        *,
        apart: bool = False,
    ) -> None:
        self._parameters, self._lr, self._weight_decay = parameters, lr, weight_decay
        self._pieces = [size if apart or (as_single and p.numel() // size % LANES) else 1 for p in parameters]
        self._all_whole = all(pieces == 1 for pieces in self._pieces)
        self._counts = torch.zeros(size if apart else 1, dtype=torch.float32, device=parameters[0].device)
        self._moments = [
            [torch.zeros_like(parameter, memory_format=torch.preserve_format) for parameter in parameters]
            for _ in ("mean", "square")
        ]
        self._values, self._means, self._squares = (
            self._cut([each.data for each in whole]) for whole in (parameters, *self._moments)
        )
        self._steps = [*self._counts.unbind()] * (len(self._values) // len(self._counts))

    def count(self, member: int) -> Tensor:
        """The member's count of steps."""
        return self._counts[member % len(self._counts)]

    def moments(self, index: int) -> dict[str, Tensor]:
        """Both moments of a parameter, of all members."""
        means, squares = self._moments
        return {"exp_avg": means[index], "exp_avg_sq": squares[index]}

    @torch.no_grad()
    def step(self) -> None:
        """Steps along `grad`, and drops it: a waiting client holds no gradients."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None
            gradients.append(parameter.grad)
            parameter.grad = None
        self._counts += 1
        kernels.adam(
            self._values,
            self._cut(gradients),
            self._means,
            self._squares,
            [],
            self._steps,
            lr=self._lr,
            weight_decay=self._weight_decay,
            **kernels.PLAIN_ADAM,
        )

    def _cut(self, whole: list[Tensor]) -> list[Tensor]:
        if self._all_whole:
            return whole
        return [
            piece
            for tensor, pieces in zip(whole, self._pieces, strict=True)
            for piece in (tensor.chunk(pieces) if pieces > 1 else (tensor,))
        ]
