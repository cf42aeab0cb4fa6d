"""2x2 max-pooling, optimised for small networks on a CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal import kernels

HALVING = ([2, 2], [2, 2], [0, 0], [1, 1], True)
"""Window, stride, padding, dilation and ceil_mode for torch's operators."""


class HalvingMaxPool(nn.Module):
    """`nn.MaxPool2d(2, ceil_mode=True)`: the same values and gradients with less time and memory.

    torch's kernel also finds the index of each maximum, which only a backward pass needs. With fewer channels than a
    vector register holds, it goes window by window, which takes 8 times as long as a maximum over four strided views.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            pooled: Tensor = _LightPool.apply(x)  # type: ignore[no-untyped-call]
            return pooled
        height, width = x.shape[-2:]
        if height % 2 or width % 2:
            return F.max_pool2d(x, 2, ceil_mode=True)
        top = torch.maximum(x[..., 0::2, 0::2], x[..., 0::2, 1::2])
        bottom = torch.maximum(x[..., 1::2, 0::2], x[..., 1::2, 1::2])
        return torch.maximum(top, bottom)


def halved(x: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima, and the offset of each from the first pixel of its window: 0, 1, or the same one row below."""
    maxima, places = kernels.max_pool(x, *HALVING)
    height, width = x.shape[-2:]
    fits = width + 1 <= torch.iinfo(torch.uint8).max
    return maxima, (places - _first_pixels(height, width, x.device)).to(torch.uint8 if fits else torch.int32)


def spread(gradient: Tensor, steps: Tensor, onto: Tensor) -> None:
    """Writes the gradient w.r.t. the input of `halved` into `onto`, a tensor of that shape."""
    places = steps + _first_pixels(*onto.shape[-2:], onto.device)
    kernels.max_pool_backward(gradient, onto, *HALVING, places, grad_input=onto)


@cache
def _first_pixels(height: int, width: int, device: torch.device) -> Tensor:
    """The row-major index of the first pixel of each window.  -> (ceil(H/2), ceil(W/2))"""
    return torch.arange(height * width, device=device).view(height, width)[::2, ::2].contiguous()


class _LightPool(torch.autograd.Function):
    """torch's kernels, but a pending pass keeps 1 byte per output instead of the whole input and 8: a twentieth.

    A client that waits for its reply holds its pending pass, and a thousand of these must fit into memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        pooled, steps = halved(x)
        ctx.save_for_backward(steps)
        ctx.shape = x.shape
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (steps,) = ctx.saved_tensors
        last = gradient.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        d_x = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=layout)
        spread(gradient, steps, d_x)
        return d_x
