"""Dropout whose masks are a function of counters instead of the process-wide generator.

A mask depends on the learner's stream, its step, the pass within the step, the layer and how often the pass has used
that layer. So it is the same in every engine and after every resume. An anchor drops the same units as the student in
the same pass, so the less-forgetting gradient stays exactly zero at the anchor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedal.seeding import raw_bits

ELEMENTWISE = (nn.Dropout,)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
MAX_PASSES, MAX_LAYERS, MAX_USES = 1 << 16, 1 << 16, 1 << 16


class MaskClock:
    """The step and pass for which masks are drawn. All copies of a model share one clock."""

    def __init__(self, key: int) -> None:
        self.key, self.step, self.current_pass = key, 0, 0
        self._uses: Counter[int] | None = None  # of each layer in the current forward pass

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskClock:
        return self

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Encloses every forward pass of the learner or a copy; counting of each layer's uses starts again at 0."""
        self._uses = Counter()
        try:
            yield
        finally:
            self._uses = None

    def keep_mask(self, layer: int, p: float, n: int) -> Tensor:
        """A boolean mask that keeps each of n units with probability 1 - p.  -> (n,)"""
        if self._uses is None:
            raise RuntimeError(
                "a dropout mask was requested outside a forward pass; is activation checkpointing in use?"
            )
        use = self._uses[layer]
        self._uses[layer] += 1
        counter = ((self.step * MAX_PASSES + self.current_pass) * MAX_LAYERS + layer) * MAX_USES + use
        threshold = np.uint64(min(int(p * 2.0**64), 2**64 - 1))
        return torch.from_numpy(raw_bits(self.key, counter, n) >= threshold)


class CounterDropout:
    """The forward function of a dropout layer."""

    def __init__(self, module: nn.Module, layer: int, clock: MaskClock) -> None:
        self._module, self._layer, self._clock = module, layer, clock

    def __call__(self, x: Tensor) -> Tensor:
        p = float(self._module.p)  # type: ignore[arg-type]
        if not self._module.training or p == 0.0:
            return x
        if p == 1.0:
            return torch.zeros_like(x)
        shape = x.shape
        if isinstance(self._module, CHANNELWISE):  # drops whole channels of (B, C, ...)
            shape = torch.Size((*x.shape[:2], *[1] * (x.dim() - 2)))
        keep = self._clock.keep_mask(self._layer, p, shape.numel()).to(x.device).view(shape)
        return x * (keep.to(x.dtype) / (1 - p))


def seed_dropout(model: nn.Module, clock: MaskClock) -> None:
    """Makes every dropout layer of `model` draw its masks from the clock. Deep copies of the model share it."""
    for layer, module in enumerate(model.modules()):
        if isinstance(module, ELEMENTWISE + CHANNELWISE):
            module.forward = CounterDropout(module, layer, clock)  # type: ignore[assignment]
