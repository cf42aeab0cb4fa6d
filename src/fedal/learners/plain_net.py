"""A chain of linear layers and ReLU without autograd: the same operators on the same numbers, so the same bits.

Autograd takes longer to keep its books than a small network takes to compute. Here the backward pass is written out,
as torch's own formulas have it: a step of mlp-small takes half of the time. tests/learners/test_plain_net.py compares
the bits with autograd's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedal import kernels
from fedal.learners.stacked.bits import SAME_BITS
from fedal.learners.stacked.chain import chain_of
from fedal.learners.stacked.layers import add_gradient
from fedal.models.classifier import Classifier


class Pass(NamedTuple):
    """What the way back needs: the input of each linear layer and the output of each ReLU, from layer `begin` on."""

    begin: int
    kept: list[Tensor]
    has_features: bool = False


class PlainNet:
    """Computes with the parameters of a module that is such a chain; `head` is the place of its last part."""

    def __init__(self, layers: Sequence[nn.Module], head: int | None) -> None:
        self._flattens = isinstance(layers[0], nn.Flatten)
        steps = [layer for layer in layers if isinstance(layer, nn.Linear | nn.ReLU)]
        self._steps = [layer if isinstance(layer, nn.Linear) else None for layer in steps]  # None: ReLU
        self.head = head

    @classmethod
    def of(cls, module: nn.Module) -> PlainNet | None:
        """The module as such a net; None if it is another one."""
        try:
            layers = chain_of(module, 1)
        except TypeError:
            return None
        if not all(isinstance(layer, SAME_BITS) for layer in layers):
            return None
        if any(isinstance(layer, nn.Flatten) for layer in layers[1:]):  # the layers before it may see images
            return None
        head = len(_steps_of(module.body)) if isinstance(module, Classifier) else None
        return cls(layers, head)

    @torch.no_grad()
    def __call__(self, x: Tensor, begin: int = 0) -> Tensor:
        """Logits of inputs, or of what layer `begin` gets.  (B, ...) -> (B, K)"""
        return self._forward(self._entered(x, begin), begin, len(self._steps), [])

    @torch.no_grad()
    def recorded(self, x: Tensor, begin: int = 0) -> tuple[Tensor, Pass]:
        """As a call, with what the way back needs."""
        kept: list[Tensor] = []
        return self._forward(self._entered(x, begin), begin, len(self._steps), kept), Pass(begin, kept)

    @torch.no_grad()
    def recorded_features(self, x: Tensor) -> tuple[Tensor, Tensor, Pass]:
        """As `recorded`, with the features between logits and pass.  (B, ...) -> (B, K), (B, d)"""
        assert self.head is not None
        kept: list[Tensor] = []
        features = self._forward(self._entered(x, 0), 0, self.head, kept)
        return self._forward(features, self.head, len(self._steps), kept), features, Pass(0, kept, has_features=True)

    @torch.no_grad()
    def add_gradients(
        self, passes: Sequence[Pass], gradients: Sequence[Tensor | None], d_features: Tensor | None = None
    ) -> None:
        """Adds the gradients w.r.t. the parameters to `grad`, for those w.r.t. logits and features."""
        for done, gradient in zip(reversed(passes), reversed(gradients), strict=True):  # in autograd's order
            more = d_features if done.has_features else None
            end = len(self._steps)
            if more is not None and gradient is not None:
                assert self.head is not None
                gradient = self._backward(done, gradient, end, self.head, to_input=True) + more
                end = self.head
            elif more is not None:
                assert self.head is not None
                gradient, end = more, self.head
            if gradient is not None:
                self._backward(done, gradient, end, done.begin)

    @torch.no_grad()
    def input_gradient(self, done: Pass, gradient: Tensor) -> Tensor:
        """The gradient w.r.t. what the pass got, flat.  (B, K) -> (B, D)"""
        return self._backward(done, gradient, len(self._steps), done.begin, to_input=True, to_parameters=False)

    def _entered(self, x: Tensor, begin: int) -> Tensor:
        x = x.contiguous()
        return x.flatten(1) if self._flattens and begin == 0 else x

    def _forward(self, x: Tensor, begin: int, end: int, kept: list[Tensor]) -> Tensor:
        overwrites = False  # ReLU may overwrite the output of a linear layer, which nothing else needs
        for layer in self._steps[begin:end]:
            if layer is None:
                x = torch.relu_(x) if overwrites else torch.relu(x)
                kept.append(x)
            else:
                kept.append(x)
                x = linear(x, layer.weight, layer.bias)
            overwrites = layer is not None
        return x

    def _backward(
        self, done: Pass, gradient: Tensor, end: int, begin: int, *, to_input: bool = False, to_parameters: bool = True
    ) -> Tensor:
        for place in range(end - 1, begin - 1, -1):
            layer, kept = self._steps[place], done.kept[place - done.begin]
            if layer is None:
                gradient = kernels.relu_backward(gradient, kept, 0)
                continue
            if to_parameters:
                add_gradient(layer.weight, gradient.t().mm(kept))
                if layer.bias is not None:
                    add_gradient(layer.bias, gradient.sum(0))
            if to_input or place > begin:
                gradient = gradient.mm(layer.weight)
        return gradient


def _steps_of(part: nn.Module) -> list[nn.Module]:
    return [layer for layer in part.modules() if isinstance(layer, nn.Linear | nn.ReLU)]
