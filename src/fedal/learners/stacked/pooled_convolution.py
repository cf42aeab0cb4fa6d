"""A convolution and the pool after it as one operator of a stack, because of what lies between them.

The full image of all members is the largest tensor of a pass: 3 MB for five LeNet5, four times what follows. As long
as it comes and goes, whatever a waiting client keeps is laid beside it and leaves holes in the heap that the next one
does not fit into: 57 MB with 200 clients. So it never exists on the way forward, where some samples are convolved and
pooled at a time, and on the way back, where the gradient of the weights needs all of it, every thread uses the same
memory again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal import kernels
from fedal.models.pooling import HalvingMaxPool, halved, spread

SAMPLES = 16  # at a time
_of_thread = threading.local()


def pooled_convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor, groups: int, shared: bool) -> Tensor:
    """`HalvingMaxPool()(layer(x))` for all members: their channels lie side by side, in x too unless it is shared."""
    if torch.is_grad_enabled():
        pooled: Tensor = _PooledConvolution.apply(x, weight, bias, layer, groups, shared)  # type: ignore[no-untyped-call]
        return pooled
    pool = HalvingMaxPool()
    return torch.cat([pool(full) for full in _convolved(layer, x, weight, bias, 1 if shared else groups)])


def _convolved(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Iterator[Tensor]:
    """The full images, some samples at a time."""
    assert not isinstance(layer.padding, str)
    for part in torch.split(x, SAMPLES):
        yield F.conv2d(part, weight, bias, layer.stride, layer.padding, layer.dilation, groups)


class _PooledConvolution(torch.autograd.Function):
    """A shared input needs no gradient; that of its weights is computed group by group.

    oneDNN's dense kernel for the gradient of a few channels is 4 times slower than its grouped one.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: nn.Conv2d, groups: int, shared: bool
    ) -> Tensor:
        parts = []
        for full in _convolved(layer, x, weight, bias, 1 if shared else groups):
            parts.append(halved(full))
        maxima, steps = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(x, weight, steps)
        ctx.layer, ctx.groups, ctx.shared, ctx.shape = layer, groups, shared, (len(x), *full.shape[1:])
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, steps = ctx.saved_tensors
        layer, groups = ctx.layer, ctx.groups
        full = _scratch(ctx.shape, gradient)
        for parts in zip(*(torch.split(whole, SAMPLES) for whole in (gradient, steps, full)), strict=True):
            spread(*parts)
        if ctx.shared:
            x = x.repeat(1, groups, 1, 1).contiguous(memory_format=torch.channels_last)
        shape = (layer.stride, layer.padding, layer.dilation, False, [0, 0], groups)
        wanted = [ctx.needs_input_grad[0], True, True]
        d_x, d_weight, d_bias = kernels.convolution_backward(full, x, weight, [len(weight)], *shape, wanted)
        return d_x, d_weight, d_bias, None, None, None


def _scratch(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """Memory of this thread for an image, channels innermost; its content is what was there."""
    batch, channels, height, width = shape
    size = math.prod(shape)
    memory: Tensor = getattr(_of_thread, "memory", like.new_empty(0))
    if len(memory) < size or memory.dtype != like.dtype or memory.device != like.device:
        memory = _of_thread.memory = like.new_empty(size)
    return memory[:size].view(batch, height, width, channels).permute(0, 3, 1, 2)
