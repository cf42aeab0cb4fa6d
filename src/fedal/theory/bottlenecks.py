"""What limits a federation: the bias of its models, what they know together, and how much of it each one takes over.

The three numbers are measured on data that no client trains on. A method that lowers the bias need not improve the
ensemble, and a better ensemble need not reach its members.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedal.theory.outputs import client_outputs
from fedal.theory.view import SERVER, Columns, FederationView


@dataclass(frozen=True)
class Bottlenecks:
    """Bias of each client, accuracy of the ensemble, and the gap between it and its members."""

    bias: tuple[float, ...]
    ensemble: float
    gap: float


def bottlenecks(outputs: Tensor, labels: Tensor) -> Bottlenecks:
    """The three numbers of the clients' logits on labelled samples.  (N, M, K), (M,)

    Bias: total variation distance between the mean of a client's probabilities and the class frequencies of the
    samples; 0 if it predicts every class as often as it occurs. Ensemble: the mean of all logits.
    """
    frequencies = torch.bincount(labels, minlength=outputs.shape[-1]).double() / len(labels)
    predicted = torch.softmax(outputs.double(), -1).mean(1)  # (N, K)
    bias = (predicted - frequencies).abs().sum(-1) / 2
    ensemble = _accuracy(outputs.mean(0), labels)
    return Bottlenecks(tuple(bias.tolist()), ensemble, ensemble - _accuracy(outputs, labels))


def measure_bottlenecks(view: FederationView, *, whole: bool) -> Columns:
    """The three numbers of the clients that are evaluated, on the test samples and any validation samples."""
    columns: Columns = {client: {} for client in [*view.evaluated, SERVER]}
    learners = [view.learners[client] for client in view.evaluated]
    for data in view.common_sets:
        used = data.used(whole=whole)
        found = bottlenecks(client_outputs(learners, data.samples.take(used)), data.labels[used])
        for client, bias in zip(view.evaluated, found.bias, strict=True):
            columns[client][f"{data.name}_bias"] = bias
        columns[SERVER] |= {f"{data.name}_ensemble_accuracy": found.ensemble, f"{data.name}_gap": found.gap}
    return columns


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of right predictions, over all leading axes.  (..., M, K), (M,)"""
    return float((logits.argmax(-1) == labels).double().mean())
