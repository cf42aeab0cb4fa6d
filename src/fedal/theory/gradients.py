"""Gradients w.r.t. a model's parameters: their size, and their variance over mini-batches (the sigmas).

Everything is measured in evaluation mode, where a loss is a mean over samples. So the gradients of mini-batches average
to the full gradient, as Assumption (Unbiased gradients) requires. In training mode, BatchNorm couples the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedal.seeding import BatchStream

MAX_BATCHES = 16
CHUNK = 128

Terms = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""(logits, sample indices) -> for each loss, the gradient of its mean over these samples w.r.t. the logits."""


@dataclass(frozen=True)
class Gradient:
    """The gradient of one loss: over all samples, as one flat vector, and its variance over mini-batches."""

    whole: Tensor
    variance: float = 0.0

    @property
    def norm_sq(self) -> float:
        return float(self.whole.square().sum())


def gradients(module: nn.Module, x: Tensor, terms: Terms, stream: BatchStream | None = None) -> dict[str, Gradient]:
    """The gradient of each loss over all of x; with a stream, also E ||g_B - g||^2 over up to an epoch of its batches.

    If x has fewer samples than a batch, the full gradient is over the batch used in training, which repeats samples.
    """
    everything = torch.arange(len(x)) if stream is None else torch.arange(max(len(x), stream.batch_size)) % len(x)
    whole: dict[str, Tensor] = {}
    for part in torch.split(everything, CHUNK):
        for name, vector in _of_batch(module, x, terms, part).items():
            share = len(part) / len(everything) * vector
            whole[name] = whole[name] + share if name in whole else share
    if stream is None:
        return {name: Gradient(vector) for name, vector in whole.items()}
    deviations = dict.fromkeys(whole, 0.0)
    batches = min(MAX_BATCHES, len(everything) // stream.batch_size)
    for step in range(batches):
        part = torch.from_numpy(stream.indices(step))
        for name, vector in _of_batch(module, x, terms, part).items():
            deviations[name] += float((vector - whole[name]).square().sum()) / batches
    return {name: Gradient(vector, deviations[name]) for name, vector in whole.items()}


def _of_batch(module: nn.Module, x: Tensor, terms: Terms, part: Tensor) -> dict[str, Tensor]:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _evaluating(module), torch.enable_grad():
        logits = module(x[part])
    found = {}
    for name, d_logits in terms(logits.detach(), part).items():
        pieces = torch.autograd.grad(
            logits, parameters, d_logits, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found[name] = torch.cat([piece.flatten() for piece in pieces])
    return found


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
