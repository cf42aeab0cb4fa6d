"""Networks of one architecture as one, each with its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedal.learners.base import Mode
from fedal.learners.stacked.bits import SAME_BITS
from fedal.learners.stacked.chain import ACTIVATIONS, DROPOUTS, POOLS, chain_of
from fedal.learners.stacked.dropout import Dropout
from fedal.learners.stacked.images import Convolution, PooledConvolution, as_channels
from fedal.learners.stacked.layers import Activation, Back, ClassMajor, Flatten, Linear, ReLU, StackedLayer
from fedal.learners.stacked.normalisation import BatchNorm, LayerNorm
from fedal.models.pooling import HalvingMaxPool

KINDS: dict[type[nn.Module], Callable[[Any], StackedLayer]] = {
    **dict.fromkeys((*ACTIVATIONS, *POOLS), Activation),
    **dict.fromkeys(DROPOUTS, Dropout),
    nn.Conv2d: Convolution,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.LayerNorm: LayerNorm,
}


class StackedNet:
    """G chains of the same layers as one; raises TypeError if the models are no such chain.

    `as_single` asks for the bits of single clients, which chains of linear layers have; see bits.py.
    """

    def __init__(self, members: Sequence[nn.Module], input_rank: int, as_single: bool) -> None:
        self.size = len(members)
        self._members, self._input_rank, self._as_single = list(members), input_rank, as_single
        chains = [chain_of(member, input_rank) for member in members]
        of_linear = all(isinstance(layer, SAME_BITS) for layer in chains[0])
        self.as_single = as_single and of_linear
        self.layers = _stacked([[*same] for same in zip(*chains, strict=True)], of_linear)
        last: list[Any] = [chain[-1] for chain in chains]
        if of_linear and not as_single and isinstance(last[0], nn.Linear):
            self.layers[-1] = ClassMajor(last, True)
        self._starts_flat = isinstance(self.layers[0], Flatten)
        self.parameters = [parameter for layer in self.layers for parameter in layer.parameters]
        self.buffers = [buffer for layer in self.layers for buffer in layer.buffers]
        self._first = next(place for place, layer in enumerate(self.layers) if layer.parameters)

    @torch.no_grad()
    def __call__(self, x: Tensor, mode: Mode) -> Tensor:
        """Logits of every member; x has a leading client axis, or none if it is shared.  -> (G, B, K)"""
        x, shared = self._entered(x)
        for layer in self.layers:
            if shared and layer.own_input:
                x, shared = self._repeated(x), False
            x = layer(x, shared, mode)
            shared = shared and not layer.parameters
        return x

    @torch.no_grad()
    def recorded(self, x: Tensor, mode: Mode) -> tuple[Tensor, list[Back]]:
        """As a call, with the backward passes of the layers."""
        x, shared = self._entered(x)
        backs = []
        for layer in self.layers:
            if shared and layer.own_input:
                x, shared = self._repeated(x), False
            x, back = layer.recorded(x, shared, mode)
            backs.append(back)
            shared = shared and not layer.parameters
        return x, backs

    @torch.no_grad()
    def back(self, backs: Sequence[Back], gradient: Tensor) -> None:
        """Adds the gradients w.r.t. the parameters to `grad`, for a gradient (G, B, K) w.r.t. the logits."""
        for place in range(len(backs) - 1, self._first - 1, -1):
            further = backs[place](gradient, place > self._first)
            if further is not None:
                gradient = further

    def part(self, whole: Tensor, member: int, like: Tensor) -> Tensor:
        """A member's part of a parameter or buffer, or of a tensor in its shape, as a view in the shape of `like`."""
        return whole.chunk(self.size)[member].view(like.shape)

    def again(self) -> StackedNet:
        """Another net with the same layers and the current values."""
        return StackedNet(self._members, self._input_rank, self._as_single)

    def _entered(self, x: Tensor) -> tuple[Tensor, bool]:
        shared = x.dim() == self._input_rank + 1
        return (as_channels(x) if self._input_rank == 3 and not shared and not self._starts_flat else x), shared

    def _repeated(self, x: Tensor) -> Tensor:
        """The shared input with a client axis."""
        if x.dim() == 4:
            return x.repeat(1, self.size, 1, 1).contiguous(memory_format=torch.channels_last)
        return x.expand(self.size, *x.shape)


def _stacked(chain: list[list[Any]], as_single: bool) -> list[StackedLayer]:
    layers: list[StackedLayer] = []
    before: nn.Module | None = None
    for members, (after, *_) in pairwise([*chain, [None]]):
        first = members[0]
        if isinstance(first, HalvingMaxPool) and isinstance(before, nn.Conv2d) and _can_be_pooled(before):
            pass  # a part of the layer before it
        elif isinstance(first, nn.Conv2d) and isinstance(after, HalvingMaxPool) and _can_be_pooled(first):
            layers.append(PooledConvolution(members))
        elif isinstance(first, nn.ReLU):
            layers.append(
                ReLU(members, overwrites=isinstance(layers[-1] if layers else None, Linear | PooledConvolution))
            )
        elif isinstance(first, nn.Linear):
            layers.append(Linear(members, as_single))
        elif isinstance(first, nn.Flatten):
            layers.append(Flatten(members, of_channels=bool(layers)))
        else:
            layers.append(KINDS[type(first)](members))
        before = first
    return layers


def _can_be_pooled(layer: nn.Conv2d) -> bool:
    return layer.bias is not None and layer.groups == 1 and not isinstance(layer.padding, str)
