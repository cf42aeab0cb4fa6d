"""Normalisation of G members as one, each with its own statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal.learners.base import Mode
from fedal.learners.stacked.layers import StackedLayer, joined

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class BatchNorm(StackedLayer):
    """A channel has its own statistics, so the channels of all members in one image are normalised separately.

    The modes are those of `fedal.learners.base.Mode`.
    """

    own_input = True

    def __init__(self, members: Sequence[nn.BatchNorm1d | nn.BatchNorm2d]) -> None:
        super().__init__(members)
        self._layer = members[0]
        self.parameters = [
            joined([getattr(member, name) for member in members])
            for name in ("weight", "bias")
            if getattr(self._layer, name) is not None
        ]
        if self._layer.running_mean is not None:
            self.buffers = [torch.stack([getattr(member, name) for member in members]) for name in STATISTICS]

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        mean, variance = None, None
        if self.buffers and mode != "frozen":
            mean, variance, counted = self.buffers
            if mode == "train":
                counted += 1
            else:  # a pending pass reads them again in its backward pass, whatever later passes do
                mean, variance = mean.clone(), variance.clone()
        weight, bias = self.parameters or (None, None)
        momentum = self._layer.momentum
        if momentum is None:  # the mean over all batches
            momentum = 1 / float(self.buffers[2][0]) if self.buffers and mode == "train" else 0.0
        is_image = x.dim() == 4
        flat = [each if each is None else each.flatten() for each in (mean, variance, weight, bias)]
        whole = x if is_image else x.transpose(0, 1).flatten(1)  # (G, B, D) -> (B, G*D)
        from_batch = mode != "eval" or mean is None
        y = F.batch_norm(whole, flat[0], flat[1], flat[2], flat[3], from_batch, momentum, self._layer.eps)
        return y if is_image else y.view(len(y), self.size, -1).transpose(0, 1)


class LayerNorm(StackedLayer):
    """Over the whole sample; weights and biases differ between members."""

    own_input = True

    def __init__(self, members: Sequence[nn.LayerNorm]) -> None:
        super().__init__(members)
        self._shape, self._eps = members[0].normalized_shape, members[0].eps
        self.parameters = [
            joined([getattr(member, name) for member in members])
            for name in ("weight", "bias")
            if getattr(members[0], name) is not None
        ]

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        is_image = len(self._shape) == 3
        each = x.view(len(x), self.size, -1, *x.shape[2:]).transpose(0, 1) if is_image else x  # (G, B, *shape)
        each = F.layer_norm(each, self._shape, eps=self._eps)
        if self.parameters:
            each = each * self.parameters[0].unsqueeze(1)
        for bias in self.parameters[1:]:
            each = each + bias.unsqueeze(1)
        return each.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last) if is_image else each
