"""Networks of one architecture as one: small networks are bound by operator calls, not by arithmetic.

Parameters of all members are concatenated along their first axis, so that G convolutions are one grouped
convolution and G linear layers one batched matrix product. Between layers, images of all members are channels of one
image (B, G*C, H, W) and vectors are (G, B, D). An input that all members share has no client axis: the first layer is
then one dense layer, G times as wide.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal.learners.stacked.pooled_convolution import pooled_convolution
from fedal.models.pooling import HalvingMaxPool

STACKED_LAYERS = (nn.Conv2d, HalvingMaxPool, nn.Linear, nn.Flatten, nn.ReLU)


class StackedNet:
    """G copies of one chain of layers, each with its own parameters."""

    def __init__(self, members: Sequence[nn.Module], input_rank: int) -> None:
        self.size = len(members)
        self._input_rank = input_rank  # axes of one sample
        self._layers = [part for part in members[0].modules() if not any(part.children())]
        for layer, following in pairwise([None, *self._layers, None]):
            if isinstance(layer, nn.Conv2d) != isinstance(following, HalvingMaxPool):
                raise TypeError("convolutions and pools can only be stacked in pairs")
            if isinstance(layer, nn.Conv2d) and (layer.bias is None or layer.groups != 1):
                raise TypeError("convolutions without bias or with groups cannot be stacked")
            if layer is not None and not isinstance(layer, STACKED_LAYERS):
                raise TypeError(f"{type(layer).__name__} layers cannot be stacked")
        self.parameters = [
            nn.Parameter(_joined([parameter.detach() for parameter in same]))
            for same in zip(*(member.parameters() for member in members), strict=True)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of every member; x has a leading client axis, or none if it is shared.  -> (G, B, K)"""
        parameters = iter(self.parameters)
        shared = x.dim() == self._input_rank + 1
        if not shared and isinstance(self._layers[0], nn.Conv2d):
            x = self._as_channels(x)
        for layer in self._layers:
            if isinstance(layer, nn.Conv2d):
                weight, bias = next(parameters), next(parameters)
                x, shared = pooled_convolution(layer, x, weight, bias, self.size, shared), False
            elif isinstance(layer, nn.Linear):
                x, shared = self._projected(layer, x, parameters, shared), False
            elif isinstance(layer, nn.Flatten):
                x = self._flattened(x, shared)
            elif isinstance(layer, nn.ReLU):
                x = layer(x)
        return x

    def part(self, whole: Tensor, member: int) -> Tensor:
        """A member's part of a parameter, or of a tensor in its shape, as a view."""
        return whole.chunk(self.size)[member]

    def frozen_copy(self) -> StackedNet:
        """A copy with the same layers and fixed parameters."""
        other = copy.copy(self)
        other.parameters = [nn.Parameter(p.detach().clone(), requires_grad=False) for p in self.parameters]
        return other

    def _as_channels(self, x: Tensor) -> Tensor:
        """(G, B, C, H, W) -> (B, G*C, H, W), channels innermost in memory."""
        return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)

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


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    joined = torch.cat(list(tensors))
    return joined.contiguous(memory_format=torch.channels_last) if joined.dim() == 4 else joined
