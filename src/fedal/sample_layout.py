"""Two ways to hold the numbers of many samples (R, K) in memory: sample by sample, or column by column.

Column by column, the products of a small network and above all its softmax are faster: torch normalises ten classes row
by row in ten times the time. The numbers are the same up to rounding. So `BY_SAMPLE` is the form of every run, except
those whose bits differ from single clients anyway.
"""

from __future__ import annotations

from typing import Protocol

from fedal.lazy import Tensor, torch
from fedal.losses import d_cross_entropy


class SampleLayout(Protocol):
    """The operators of a discriminator whose results are in one layout."""

    def softmax(self, logits: Tensor) -> Tensor:
        """Over the last axis.  (N, B, K) -> (N, B, K)"""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x weight' + bias.  (R, in), (out, in), (out,) -> (R, out)"""

    def back(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The gradient w.r.t. the input of `linear`.  (R, out), (out, in) -> (R, in)"""

    def d_cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Gradient of the mean cross-entropy w.r.t. the scores.  (R, N), (R,) -> (R, N)"""


class BySample:
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -1)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def back(self, gradient: Tensor, weight: Tensor) -> Tensor:
        return gradient @ weight

    def d_cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        return d_cross_entropy(scores, labels)


class ByColumn:
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.permute(2, 0, 1).contiguous(), 0).permute(1, 2, 0)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias.unsqueeze(1), weight, x.t()).t()

    def back(self, gradient: Tensor, weight: Tensor) -> Tensor:
        return torch.mm(weight.t(), gradient.t()).t()

    def d_cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        return d_cross_entropy(scores.unsqueeze(0), labels.unsqueeze(0)).squeeze(0)  # as of one client of a stack


BY_SAMPLE, BY_COLUMN = BySample(), ByColumn()
