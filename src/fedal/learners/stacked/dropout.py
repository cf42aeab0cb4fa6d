"""Dropout of G members as one: every member drops the units that it would drop alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedal.learners.base import Mode
from fedal.learners.dropout import CounterDropout
from fedal.learners.stacked.layers import StackedLayer


class Dropout(StackedLayer):
    """Draws the masks from the members' own counters."""

    own_input = True

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__(members)
        self._droppers = [cast(CounterDropout, member.forward) for member in members]

    def __call__(self, x: Tensor, shared: bool, mode: Mode) -> Tensor:
        if mode == "eval":
            return x
        if x.dim() == 4:  # images: the channels of member after member
            of_one = torch.Size((len(x), x.shape[1] // self.size, *x.shape[2:]))
            masks = [dropper.mask(of_one, x) for dropper in self._droppers]
            return x * torch.cat([mask.expand(of_one) for mask in masks], 1)
        return x * torch.stack([dropper.mask(x.shape[1:], x) for dropper in self._droppers])
