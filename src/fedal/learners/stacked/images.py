"""Convolutions of G members as one grouped convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal.learners.base import Mode
from fedal.learners.stacked.layers import Back, StackedLayer, add_gradient
from fedal.learners.stacked.pooled_convolution import Kernel


def as_channels(x: Tensor) -> Tensor:
    """(G, B, C, H, W) -> (B, G*C, H, W). Images with one channel are not copied, and their channels not innermost."""
    return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)


def innermost(x: Tensor) -> Tensor:
    """The images with their channels innermost in memory, where oneDNN and the pools are 3 to 7 times as fast."""
    return x.contiguous(memory_format=torch.channels_last)


class Convolution(StackedLayer):
    """Each member has its own groups of channels. On a shared input, it is one dense convolution, G times as wide."""

    def __init__(self, members: Sequence[nn.Conv2d]) -> None:
        super().__init__(members)
        self._layer = members[0]
        self.own_input = self._layer.groups > 1
        weight = torch.cat([member.weight.detach() for member in members])
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.parameters = [self.weight]
        self.bias: nn.Parameter | None = None
        if self._layer.bias is not None:
            self.bias = nn.Parameter(torch.cat([member.bias.detach() for member in members if member.bias is not None]))
            self.parameters.append(self.bias)

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        layer, x = self._layer, innermost(x)
        groups = 1 if shared else self.size * layer.groups
        return F.conv2d(x, self.weight, self.bias, layer.stride, layer.padding, layer.dilation, groups)


class PooledConvolution(Convolution):
    """A convolution and the pool after it, with a backward pass of its own."""

    def __init__(self, members: Sequence[nn.Conv2d]) -> None:
        super().__init__(members)
        self._kernel = Kernel(self._layer, self.size)

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        assert self.bias is not None
        return self._kernel.pooled(innermost(x), self.weight, self.bias, shared)

    def recorded(self, x: Tensor, shared: bool, mode: Mode) -> tuple[Tensor, Back]:
        assert self.bias is not None
        weight, bias = self.weight, self.bias
        y, steps, shape = self._kernel.halved(innermost(x), weight, bias, shared)

        def back(gradient: Tensor, needed: bool) -> Tensor | None:
            # x as it came: in another layout, the gradient w.r.t. the weights has other bits than in recorded runs
            d_x, d_weight, d_bias = self._kernel.back(gradient, x, weight, steps, shape, shared, needed)
            add_gradient(weight, d_weight)
            add_gradient(bias, d_bias)
            return d_x

        return y, back
