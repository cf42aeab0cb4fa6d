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
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal import kernels
from fedal.models.pooling import HalvingMaxPool, halved, spread

SAMPLES = 16  # processed at a time
_of_thread = threading.local()


@dataclass(frozen=True)
class Kernel:
    """The convolution of all members: their channels are concatenated, in x too unless it is shared.

    A shared input needs no gradient; the gradient w.r.t. its weights is computed by group: oneDNN's dense kernel for
    the gradient of a few channels takes 4 times as long as its grouped one.
    """

    layer: nn.Conv2d
    size: int

    def pooled(self, x: Tensor, weight: Tensor, bias: Tensor, shared: bool) -> Tensor:
        """`HalvingMaxPool()(layer(x))` for all members, without a backward pass."""
        pool = HalvingMaxPool()
        return torch.cat([pool(full) for full in self._convolved(x, weight, bias, shared)])

    def halved(self, x: Tensor, weight: Tensor, bias: Tensor, shared: bool) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """The same, with the offsets of the maxima and the shape of the full image, for `back`."""
        parts = []
        for full in self._convolved(x, weight, bias, shared):
            parts.append(halved(full))
        maxima, steps = map(torch.cat, zip(*parts, strict=True))
        return maxima, steps, (len(x), *full.shape[1:])

    def back(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        steps: Tensor,
        shape: tuple[int, ...],
        shared: bool,
        needed: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """The gradients w.r.t. x (if needed), the weights and the biases."""
        full = _scratch(shape, gradient)
        for parts in zip(*(torch.split(whole, SAMPLES) for whole in (gradient, steps, full)), strict=True):
            spread(*parts)
        if shared:
            x = x.repeat(1, self.size, 1, 1).contiguous(memory_format=torch.channels_last)
        layer = self.layer
        form = (layer.stride, layer.padding, layer.dilation, False, [0, 0], self.size)
        d_x, d_weight, _ = kernels.convolution_backward(full, x, weight, [len(weight)], *form, [needed, True, False])
        pixels = full.permute(0, 2, 3, 1).flatten(0, 2)  # a view: (B * H * W, channels)
        # oneDNN would sum them 5 to 7 times as slowly; under AVX-512 the bits of a stack are the same
        return d_x, d_weight, pixels.new_ones(len(pixels)) @ pixels

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor, shared: bool) -> Iterator[Tensor]:
        """The full images, a few samples at a time."""
        layer, groups = self.layer, 1 if shared else self.size
        for part in torch.split(x, SAMPLES):
            yield F.conv2d(part, weight, bias, layer.stride, layer.padding, layer.dilation, groups)


def _scratch(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """This thread's memory for an image, channels-last; its content is undefined."""
    batch, channels, height, width = shape
    size = math.prod(shape)
    memory: Tensor = getattr(_of_thread, "memory", like.new_empty(0))
    if len(memory) < size or memory.dtype != like.dtype or memory.device != like.device:
        memory = _of_thread.memory = like.new_empty(size)
    return memory[:size].view(batch, height, width, channels).permute(0, 3, 1, 2)
