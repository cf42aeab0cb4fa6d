"""What is measured of a model. Every accuracy is top-1 in evaluation mode; a column is named after its data."""

from __future__ import annotations

import numpy as np

from fedal.data.streams import Samples
from fedal.errors import NonFiniteError
from fedal.finite import is_finite
from fedal.lazy import Tensor, torch
from fedal.learners.base import Learner
from fedal.metrics.scores import Predictions, compute

EVALUATION_BATCH = 128  # larger batches cost more per sample on a CPU


def top_1(logits: Tensor, labels: Tensor) -> float:
    """The share of samples whose largest logit is at their label.  (B, K), (B,) -> a float in [0, 1]"""
    return int((logits.argmax(-1) == labels).sum()) / len(labels)


def outputs(learner: Learner, samples: Samples, indices: Tensor, data: str = "test") -> Tensor:
    """The logits of the samples at `indices` in evaluation mode; raises NonFiniteError.  -> (n, K)"""
    logits = torch.cat([learner.predict(samples.take(chosen)) for chosen in torch.split(indices, EVALUATION_BATCH)])
    if not is_finite(logits):
        words = data.replace("_", " ")
        raise NonFiniteError(f"the model returned non-finite values on the {words} set. A smaller lr usually helps.")
    return logits


def evaluate(
    learner: Learner,
    samples: Samples,
    labels: Tensor,
    indices: Tensor,
    data: str = "test",
    metrics: tuple[str, ...] = ("accuracy",),
    positive: int | None = None,
) -> dict[str, float]:
    """These metrics of a learner on the samples at `indices`, as columns named after the data, in this order.

    Accuracy is always among them: rows that lack it could not be compared with other runs.
    """
    logits = outputs(learner, samples, indices, data)
    if metrics == ("accuracy",):
        return {f"{data}_accuracy": top_1(logits, labels[indices])}
    found = compute(Predictions.of(logits, labels[indices], positive), tuple(dict.fromkeys([*metrics, "accuracy"])))
    return {f"{data}_{name}": value for name, value in found.items()}


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
