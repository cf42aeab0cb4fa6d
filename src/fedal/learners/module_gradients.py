"""Gradients of a module that no optimizer step asks for: w.r.t. its inputs, and those of single samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedal.learners.base import Back, Layer


def entered(module: nn.Module, at: Layer) -> Callable[[Tensor], Tensor]:
    """The module as a function of its inputs, or its last layer as a function of the features."""
    return module if at == "inputs" else module.classify  # type: ignore[return-value]


def passed(x: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Back]:
    """Outputs of a function, and the way back from a gradient w.r.t. them to one w.r.t. x."""
    values = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        outputs = function(values)
    return outputs.detach(), lambda gradient: torch.autograd.grad(outputs, values, gradient)[0]


def mean_squares(
    function: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor, gradients: Tensor
) -> list[Tensor]:
    """The mean over samples of the squared gradient w.r.t. each parameter, sample by sample.

    The square of the batch mean would be about B times too small where the samples' gradients cancel.
    """
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for sample, gradient in zip(torch.split(x, 1), torch.split(gradients, 1), strict=True):
        found = torch.autograd.grad(function(sample), parameters, gradient, materialize_grads=True)
        for total, part in zip(sums, found, strict=True):
            total.addcmul_(part, part)
    return [total / len(x) for total in sums]
