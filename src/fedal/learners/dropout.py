"""Dropout whose masks are a function of counters instead of the process-wide generator.

A mask depends on the learner's stream, its step, the pass within the step, the layer and how often the pass has used
that layer. So it is the same in every engine and after every resume. An anchor drops the same units as the student in
the same pass, so the less-forgetting gradient stays exactly zero at the anchor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedal.seeding import raw_bits

ELEMENTWISE = (nn.Dropout,)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
MAX_PASSES, MAX_LAYERS, MAX_USES = 1 << 16, 1 << 16, 1 << 16


class MaskClock:
    """The step and pass for which masks are drawn. All copies of a model share one clock.

    It encloses every forward pass of the learner or a copy: `with clock`. Counting of each layer's uses starts again.
    """

    def __init__(self, key: int) -> None:
        self.key, self.step, self.current_pass = key, 0, 0
        self._uses: dict[int, int] | None = None  # of each layer in the current forward pass

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskClock:
        return self

    def __enter__(self) -> None:
        self._uses = {}

    def __exit__(self, *error: object) -> None:
        self._uses = None

    def keep_mask(self, layer: int, p: float, n: int) -> Tensor:
        """A boolean mask that keeps each of n units with probability 1 - p.  -> (n,)"""
        if self._uses is None:
            raise RuntimeError(
                "a dropout mask was requested outside a forward pass; is activation checkpointing in use?"
            )
        use = self._uses.get(layer, 0)
        self._uses[layer] = use + 1
        counter = ((self.step * MAX_PASSES + self.current_pass) * MAX_LAYERS + layer) * MAX_USES + use
        threshold = np.uint64(min(int(p * 2.0**64), 2**64 - 1))
        return torch.from_numpy(raw_bits(self.key, counter, n) >= threshold)


class CounterDropout:
    """The forward function of a dropout layer."""

    def __init__(self, module: nn.Module, layer: int, clock: MaskClock) -> None:
        self._module, self._layer, self._clock = module, layer, clock

    def __call__(self, x: Tensor) -> Tensor:
        if not self._module.training or self._module.p == 0.0:
            return x
        return torch.zeros_like(x) if self._module.p == 1.0 else x * self.mask(x.shape, x)

    def mask(self, shape: torch.Size, like: Tensor) -> Tensor:
        """The factors of an input of this shape, or of its channels: 0 for what is dropped, else 1 / (1 - p)."""
        p = float(self._module.p)  # type: ignore[arg-type]
        if isinstance(self._module, CHANNELWISE):  # drops whole channels of (B, C, ...)
            shape = torch.Size((*shape[:2], *[1] * (len(shape) - 2)))
        if p in (0.0, 1.0):
            return torch.full(shape, 1.0 - p, dtype=like.dtype, device=like.device)
        keep = self._clock.keep_mask(self._layer, p, shape.numel()).to(like.device).view(shape)
        return keep.to(like.dtype) / (1 - p)


def seed_dropout(model: nn.Module, clock: MaskClock) -> None:
    """Makes every dropout layer of `model` draw its masks from the clock. Deep copies of the model share it."""
    for layer, module in enumerate(model.modules()):
        if isinstance(module, ELEMENTWISE + CHANNELWISE):
            module.forward = CounterDropout(module, layer, clock)  # type: ignore[assignment]
