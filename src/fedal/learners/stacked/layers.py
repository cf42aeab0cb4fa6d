"""Layers of G members as one. Small networks are bound by operator calls, not by arithmetic.

Between layers, images of all members are the channels of one image (B, G*C, H, W), and vectors are (G, B, D). An input
that all members share has no client axis; it gets one at the first layer that differs between members.

A layer records what its backward pass needs as a function. Linear layers and ReLU write theirs out: autograd takes
longer to keep its books than a small network takes to compute. The other layers leave it to autograd, one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedal import kernels
from fedal.learners.base import Mode

Back = Callable[[Tensor, bool], Tensor | None]
"""(gradient w.r.t. the output, whether the one w.r.t. the input is needed) -> the latter. Adds those of parameters."""


class StackedLayer:
    """One layer of all members. Computes without autograd, unless `by_autograd` records it."""

    own_input = False  # whether every member needs an input of its own, even if they share it

    def __init__(self, members: Sequence[nn.Module]) -> None:
        self.size = len(members)
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[Tensor] = []

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        raise NotImplementedError

    def recorded(self, x: Tensor, shared: bool, mode: Mode) -> tuple[Tensor, Back]:
        """The output, and its backward pass."""
        return by_autograd(self, x, shared, mode)


def by_autograd(layer: StackedLayer, x: Tensor, shared: bool, mode: Mode) -> tuple[Tensor, Back]:
    """Records a layer by autograd, apart from the layers around it."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(not shared)
        y = layer(leaf, shared, mode)

    def back(gradient: Tensor, needed: bool) -> Tensor | None:
        wanted = [leaf, *layer.parameters] if needed else layer.parameters
        found = [*torch.autograd.grad(y, wanted, gradient)] if wanted else []
        d_x = found.pop(0) if needed else None
        for parameter, own in zip(layer.parameters, found, strict=True):
            add_gradient(parameter, own)
        return d_x

    return y.detach(), back


def add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def joined(tensors: Sequence[Tensor]) -> nn.Parameter:
    """The parameters of all members, with a leading client axis; those of a member are a view of it."""
    return nn.Parameter(torch.stack([tensor.detach() for tensor in tensors]))


class Linear(StackedLayer):
    """One batched matrix product. A shared input is repeated without copying it.

    `as_single` computes the gradient w.r.t. the weights as autograd does for a single client, with its bits. Otherwise
    the factors change places, as in all recorded runs with `stacked = true`.
    """

    def __init__(self, members: Sequence[nn.Linear], as_single: bool) -> None:
        super().__init__(members)
        self._as_single = as_single
        self.weight = joined([member.weight for member in members])  # (G, out, in)
        self.parameters = [self.weight]
        self.bias: nn.Parameter | None = None
        if members[0].bias is not None:
            self.bias = joined([member.bias for member in members])  # (G, out)
            self.parameters.append(self.bias)
        self._transposed = self.weight.data.transpose(1, 2)
        self._added = None if self.bias is None else self.bias.data.unsqueeze(1)

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        x = x.expand(self.size, *x.shape) if shared else x
        return (
            torch.bmm(x, self._transposed) if self._added is None else torch.baddbmm(self._added, x, self._transposed)
        )

    def recorded(self, x: Tensor, shared: bool, mode: Mode) -> tuple[Tensor, Back]:
        x = x.expand(self.size, *x.shape) if shared else x

        def back(gradient: Tensor, needed: bool) -> Tensor | None:
            if self._as_single:
                d_weight = torch.bmm(gradient.transpose(1, 2), x)
            else:
                d_weight = torch.bmm(x.transpose(1, 2), gradient).transpose(1, 2).contiguous()
            add_gradient(self.weight, d_weight)
            if self.bias is not None:
                add_gradient(self.bias, gradient.sum(1))
            return torch.bmm(gradient, self.weight) if needed else None

        return self(x, False, mode), back


class ClassMajor(Linear):
    """The last layer of a stack that may change bits: the values of a class are neighbours in memory.

    The softmax of all samples is then one operation per class. Row by row, torch's kernel takes ten times as long.
    """

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        x = (x.expand(self.size, *x.shape) if shared else x).transpose(1, 2)
        if self.bias is None:
            return torch.bmm(self.weight, x).transpose(1, 2)
        return torch.baddbmm(self.bias.unsqueeze(2), self.weight, x).transpose(1, 2)


class Activation(StackedLayer):
    """An operator on single numbers, or on the channels of an image: the same for any number of members."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__(members)
        self._function = copy.copy(members[0])
        if hasattr(self._function, "inplace"):
            vars(self._function)["inplace"] = False  # the input may be data, or wanted by an earlier layer

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        y: Tensor = self._function(x)
        return y


class ReLU(StackedLayer):
    """May overwrite the output of the layer before it, if neither that layer nor any other needs it."""

    def __init__(self, members: Sequence[nn.Module], overwrites: bool) -> None:
        super().__init__(members)
        self._apply = torch.relu_ if overwrites else torch.relu

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        return self._apply(x)

    def recorded(self, x: Tensor, shared: bool, mode: Mode) -> tuple[Tensor, Back]:
        y = self._apply(x)
        return y, lambda gradient, needed: kernels.relu_backward(gradient, y, 0) if needed else None


class Flatten(StackedLayer):
    """Samples (G, B, ...), or images as channels (B, G*C, H, W) -> (G, B, D)."""

    def __init__(self, members: Sequence[nn.Module], of_channels: bool) -> None:
        super().__init__(members)
        self._of_channels = of_channels  # unless the samples were vectors

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        if shared:
            return x.flatten(1)
        if self._of_channels and x.dim() == 4:
            x = x.view(len(x), self.size, -1, *x.shape[2:]).transpose(0, 1)
        return x.flatten(2)

    def recorded(self, x: Tensor, shared: bool, mode: Mode) -> tuple[Tensor, Back]:
        shape = x.shape

        def back(gradient: Tensor, needed: bool) -> Tensor | None:
            if not needed:
                return None
            if len(shape) < 4:
                return gradient.view(shape)
            apart = gradient.view(self.size, shape[0], -1, *shape[2:])  # (G, B, C, H, W)
            return apart.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)  # channels innermost, as pools want it

        return self(x, shared, mode), back
