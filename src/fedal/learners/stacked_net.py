"""Networks of one architecture as one: small nets are bound by the cost of calling operators, not by arithmetic.

Parameters of all members lie one after the other along their first axis, so that G convolutions are one grouped
convolution and G linear layers one batched matrix product. Between layers, images of all members are channels of one
image (B, G*C, H, W) and vectors are (G, B, D). An input that all members share has no client axis: the first layer then
is one dense layer that is G times as wide.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal.models.pooling import HalvingMaxPool

CHANNELWISE = (nn.ReLU, HalvingMaxPool)  # do to every channel the same, whoever it belongs to
STACKED_LAYERS = (nn.Conv2d, nn.Linear, nn.Flatten, *CHANNELWISE)


class StackedNet:
    """G copies of one chain of layers, each with parameters of its own."""

    def __init__(self, members: Sequence[nn.Module], input_rank: int) -> None:
        self.size = len(members)
        self._input_rank = input_rank  # axes of one sample
        self._layers = [part for part in members[0].modules() if not any(part.children())]
        strange = [part for part in self._layers if not isinstance(part, STACKED_LAYERS)]
        if strange:
            raise TypeError(f"{type(strange[0]).__name__} is no layer that can be stacked")
        self.parameters = [
            nn.Parameter(_joined([parameter.detach() for parameter in same]))
            for same in zip(*(member.parameters() for member in members), strict=True)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of every member; x has a client axis in front, or none if it is shared.  -> (G, B, K)"""
        parameters = iter(self.parameters)
        shared = x.dim() == self._input_rank + 1
        if not shared and isinstance(self._layers[0], nn.Conv2d):
            x = self._as_channels(x)
        for layer in self._layers:
            if isinstance(layer, nn.Conv2d):
                x, shared = self._convolved(layer, x, parameters, shared), False
            elif isinstance(layer, nn.Linear):
                x, shared = self._projected(layer, x, parameters, shared), False
            elif isinstance(layer, nn.Flatten):
                x = self._flattened(x, shared)
            else:
                x = layer(x)
        return x

    def part(self, whole: Tensor, member: int) -> Tensor:
        """What of a parameter, or of a tensor in its shape, belongs to a member: a view."""
        return whole.chunk(self.size)[member]

    def frozen_copy(self) -> StackedNet:
        """The same layers with parameters that stay as they are now."""
        other = copy.copy(self)
        other.parameters = [nn.Parameter(p.detach().clone(), requires_grad=False) for p in self.parameters]
        return other

    def _as_channels(self, x: Tensor) -> Tensor:
        """(G, B, C, H, W) -> (B, G*C, H, W), channels innermost in memory."""
        return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)

    def _convolved(self, layer: nn.Conv2d, x: Tensor, parameters: Iterator[Tensor], shared: bool) -> Tensor:
        weight, bias = next(parameters), next(parameters) if layer.bias is not None else None
        if not shared:
            return _convolution(layer, x, weight, bias, self.size)
        if bias is None or not torch.is_grad_enabled():
            return _convolution(layer, x, weight, bias)
        wide: Tensor = _SharedInputConvolution.apply(x, weight, bias, layer, self.size)  # type: ignore[no-untyped-call]
        return wide

    def _projected(self, layer: nn.Linear, x: Tensor, parameters: Iterator[Tensor], shared: bool) -> Tensor:
        weight, bias = next(parameters), next(parameters) if layer.bias is not None else None
        if shared:
            return F.linear(x, weight, bias).view(len(x), self.size, -1).transpose(0, 1)
        each = weight.view(self.size, -1, weight.shape[1]).transpose(1, 2)
        return torch.bmm(x, each) if bias is None else torch.baddbmm(bias.view(self.size, 1, -1), x, each)

    def _flattened(self, x: Tensor, shared: bool) -> Tensor:
        if shared:
            return x.flatten(1)
        if isinstance(self._layers[0], nn.Conv2d):
            x = x.view(len(x), self.size, -1, *x.shape[2:]).transpose(0, 1)  # (B, G*C, H, W) -> (G, B, C, H, W)
        return x.flatten(2)


class _SharedInputConvolution(torch.autograd.Function):
    """One dense convolution of an input that needs no gradient; that of the weights is computed group by group.

    oneDNN's dense kernel for the gradient of a few channels is 4 times slower than its grouped one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: nn.Conv2d, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.groups = layer, groups
        return _convolution(layer, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        layer, groups = ctx.layer, ctx.groups
        for_each = x.repeat(1, groups, 1, 1).contiguous(memory_format=torch.channels_last)
        steps = (layer.stride, layer.padding, layer.dilation)
        _, d_weight, d_bias = torch.ops.aten.convolution_backward(
            gradient, for_each, weight, [len(weight)], *steps, False, [0, 0], groups, [False, True, True]
        )
        return None, d_weight, d_bias, None, None


def _convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
    assert not isinstance(layer.padding, str)
    return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    joined = torch.cat(list(tensors))
    return joined.contiguous(memory_format=torch.channels_last) if joined.dim() == 4 else joined
