"""A convolution and its pool as one operator of a stack, to avoid the large tensor between them.

The full image of all members is the largest tensor of a pass: 3 MB for five LeNet5, four times what follows. Allocating
and freeing it next to the memory of waiting clients leaves holes in the heap that the next image does not fit: 57 MB
with 200 clients. So the forward pass never builds it: it convolves and pools a few samples at a time. The backward pass
needs all of it for the gradient w.r.t. the weights; there every thread reuses the same memory.
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

SAMPLES = 16  # processed at a time
_of_thread = threading.local()


def pooled_convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor, groups: int, shared: bool) -> Tensor:
    """`HalvingMaxPool()(layer(x))` for all members. Their channels are concatenated, in x too unless it is shared."""
    if torch.is_grad_enabled():
        pooled: Tensor = _PooledConvolution.apply(x, weight, bias, layer, groups, shared)  # type: ignore[no-untyped-call]
        return pooled
    pool = HalvingMaxPool()
    return torch.cat([pool(full) for full in _convolved(layer, x, weight, bias, 1 if shared else groups)])


def _convolved(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Iterator[Tensor]:
    """The full images, a few samples at a time."""
    assert not isinstance(layer.padding, str)
    for part in torch.split(x, SAMPLES):
        yield F.conv2d(part, weight, bias, layer.stride, layer.padding, layer.dilation, groups)


class _PooledConvolution(torch.autograd.Function):
    """A shared input needs no gradient; the gradient w.r.t. its weights is computed by group.

    oneDNN's dense kernel for the gradient of a few channels takes 4 times as long as its grouped one.
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
        needed = [ctx.needs_input_grad[0], True, True]
        d_x, d_weight, d_bias = kernels.convolution_backward(full, x, weight, [len(weight)], *shape, needed)
        return d_x, d_weight, d_bias, None, None, None


def _scratch(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """This thread's memory for an image, channels-last; its content is undefined."""
    batch, channels, height, width = shape
    size = math.prod(shape)
    memory: Tensor = getattr(_of_thread, "memory", like.new_empty(0))
    if len(memory) < size or memory.dtype != like.dtype or memory.device != like.device:
        memory = _of_thread.memory = like.new_empty(size)
    return memory[:size].view(batch, height, width, channels).permute(0, 3, 1, 2)
