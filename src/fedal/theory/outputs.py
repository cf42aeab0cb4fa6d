"""Distances between the clients' outputs on the public set: zeta_n, and the same in more intuitive units."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedal.learners.base import Learner
from fedal.metrics import EVALUATION_BATCH, divergences


def client_outputs(learners: Iterable[Learner], x: Tensor) -> Tensor:
    """The logits of every client on the same samples, in evaluation mode.  -> (N, M, K)"""
    return torch.stack(
        [torch.cat([learner.predict(part) for part in torch.split(x, EVALUATION_BATCH)]) for learner in learners]
    )


def zeta(outputs: Tensor) -> Tensor:
    """zeta_n = mean over the samples of KL(p_n || mean probability) in nats, Eq. (assum).  (N, M, K) -> (N,)"""
    return divergences(outputs).mean(-1).clamp(min=0)  # rounding may leave -1e-9


def distances(outputs: Tensor) -> Tensor:
    """The total variation distance between each pair of clients, mean over the samples.  (N, M, K) -> (N, N)

    It is half of the 1-norm: 0 if the outputs always agree, 1 if they never overlap.
    """
    p = torch.softmax(outputs, -1)
    return torch.stack([(p - mine).abs().sum(-1).mean(-1) / 2 for mine in p])


def agreement(outputs: Tensor) -> float:
    """The share of samples for which all clients predict the same class."""
    predicted = outputs.argmax(-1)
    return float((predicted == predicted[0]).all(0).double().mean())
