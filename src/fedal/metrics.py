"""What is measured, and on which data. Every accuracy is top-1 in evaluation mode on the global test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedal.data.streams import Samples
from fedal.errors import NonFiniteError
from fedal.finite import is_finite
from fedal.learners.base import Learner
from fedal.seeding import Indices, philox_key, raw_bits

EVALUATION_BATCH = 128  # larger batches cost more per sample on a CPU


def top_1(logits: Tensor, labels: Tensor) -> float:
    """The share of samples whose largest logit is at their label.  (B, K), (B,) -> a float in [0, 1]"""
    return int((logits.argmax(-1) == labels).sum()) / len(labels)


TEST_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"test_accuracy": top_1}
"""The metrics computed from every client's logits on test samples; each is a column of the record."""


def evaluate(learner: Learner, samples: Samples, labels: Tensor, indices: Tensor) -> dict[str, float]:
    """All `TEST_METRICS` of a learner on the samples at `indices`."""
    logits = torch.cat([learner.predict(samples.take(chosen)) for chosen in torch.split(indices, EVALUATION_BATCH)])
    if not is_finite(logits):
        raise NonFiniteError("the model returned non-finite values on the test set. A smaller lr usually helps.")
    return {name: measure(logits, labels[indices]) for name, measure in TEST_METRICS.items()}


def accuracy(learner: Learner, samples: Samples, labels: Tensor, indices: Tensor) -> float:
    return evaluate(learner, samples, labels, indices)["test_accuracy"]


def divergences(outputs: Tensor) -> Tensor:
    """KL(p_n || mean probability) in nats for every client and sample; zeta_n of Eq. (assum) is its mean.

    (N, B, K) -> (N, B)
    """
    log_p = torch.log_softmax(outputs, -1)
    log_mean = log_p.logsumexp(0) - np.log(len(outputs))
    divergence: Tensor = (log_p.exp() * (log_p - log_mean)).sum(-1)
    return divergence


def disagreement(outputs: Tensor) -> Tensor:
    """zeta: the mean over clients and samples of KL(p_n || mean probability), Eq. (assum).  (N, B, K) -> ()"""
    return divergences(outputs).mean()


def stratified_subset(labels: NDArray[np.int64], size: int, seed: int) -> Indices:
    """`size` sorted indices with the class proportions of `labels`, determined by the seed."""
    draws = raw_bits(philox_key(seed, "evaluation"), 0, len(labels))
    order = np.lexsort((draws, labels))  # by class, shuffled within each
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    share = (rank + 0.5) / counts[labels[order]]  # all samples with a share below s are a fraction s of every class
    chosen: NDArray[Any] = order[np.argsort(share, kind="stable")[:size]]
    return np.sort(chosen).astype(np.int64)
