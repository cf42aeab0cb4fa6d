"""Rules that weigh clients sample by sample, sharpen their mean, or filter outliers: functions of stacked values.

Weights are made of the uploads alone, so they cost no byte and reveal nothing new. They do not defend: a client that
is certain everywhere, or says so, gets more weight. Only `filtered_mean` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from fedal.lazy import Tensor, torch

ConfidenceRule = Literal["entropy", "inverse-entropy", "variance", "confidence"]
SharpRule = Literal["era", "power"]

SHARPNESS = {"entropy": 1.0, "era": 10.0, "power": 2.0}  # of the authors, where the user gives none
NEAR_ZERO = 1e-6  # a smaller entropy or variance counts as this one: its inverse stays finite


def mixture(values: Tensor, shares: Tensor) -> Tensor:
    """The mean over clients with shares that sum to one.  (N, B, K), shares (N, B) or (N, 1) -> (B, K)

    Written as the mean plus what differs from it: equal shares give the mean of all, bit for bit.
    """
    return values.mean(0) + ((shares - torch.ones_like(shares) / len(values))[..., None] * values).sum(0)


def shares_of(weights: Tensor) -> Tensor:
    """Weights divided by their sum over clients; equal shares where all are zero.  (N, ...) -> (N, ...)"""
    weights = torch.where(weights.sum(0) > 0, weights, torch.ones_like(weights))
    return weights / weights.sum(0)


def entropy(probabilities: Tensor) -> Tensor:
    """H in nats of each row.  (..., K) -> (...)"""
    of_each: Tensor = torch.special.entr(probabilities)
    return of_each.sum(-1)


def by_entropy(values: Tensor, p: Tensor, sharpness: float) -> Tensor:
    """exp(-sharpness H(p_n)): all equal for sharpness 0."""
    return (-sharpness * entropy(p)).exp()


def by_inverse_entropy(values: Tensor, p: Tensor, sharpness: float) -> Tensor:
    """softmax over clients of 1 / H(p_n), as public code of FedGEMS weighs clients."""
    return torch.softmax(1 / entropy(p).clamp(min=NEAR_ZERO), 0)


def by_variance(values: Tensor, p: Tensor, sharpness: float) -> Tensor:
    """The variance over classes of what a client sent, as Fed-ET weighs clients."""
    return values.var(-1, correction=0) + NEAR_ZERO**2


def by_confidence(values: Tensor, p: Tensor, sharpness: float) -> Tensor:
    """The largest probability."""
    return p.amax(-1)


CONFIDENCE: dict[ConfidenceRule, Callable[[Tensor, Tensor, float], Tensor]] = {
    "entropy": by_entropy,
    "inverse-entropy": by_inverse_entropy,
    "variance": by_variance,
    "confidence": by_confidence,
}
"""rule -> the weight of each client for each sample.  values (N, B, K), probabilities (N, B, K) -> (N, B)"""


def weighted_mean(values: Tensor, rule: ConfidenceRule, sharpness: float, *, are_logits: bool) -> Tensor:
    """sum_n w_n value_n / sum_n w_n for each sample, with the weights of `rule`.  (N, B, K) -> (B, K)"""
    p = torch.softmax(values, -1) if are_logits else values
    mean = mixture(values, shares_of(CONFIDENCE[rule](values, p, sharpness)))
    return mean if are_logits else mean.clamp(min=0)


def sharpened(mean: Tensor, rule: SharpRule, sharpness: float, *, are_logits: bool) -> Tensor:
    """A sharper version of the mean; a flatter one for a small sharpness.  (B, K) -> (B, K)

    `era` is the softmax of s times the probabilities (DS-FL, with s = 1/T): never the identity, and flat for s = 1.
    `power` raises them to the power s and normalises (SCARLET): the identity for s = 1, bit for bit. Where logits
    are averaged, the result is the same law as logits.
    """
    if rule == "era":
        logits = sharpness * (torch.softmax(mean, -1) if are_logits else mean)
    elif sharpness == 1:
        return mean
    else:
        logits = sharpness * (mean if are_logits else mean.clamp(min=torch.finfo(mean.dtype).tiny).log())
    return logits if are_logits else torch.softmax(logits, -1)


def filtered_mean(values: Tensor, trim: float) -> Tensor:
    """The mean without outliers along the direction in which the clients differ most (Cronus).  (N, B, K) -> (B, K)

    With b = floor(trim * N) suspects, a first pass keeps the share 1 - b / 2N of the clients with the lowest scores
    |<y_n - mean, v>|, v the first eigenvector of their covariance, and a second pass drops scores above the same
    quantile; for each sample on its own. `eigh`, since a power
    iteration from the vector of ones, as in public code, starts in the null space of any covariance of distributions.
    """
    n = len(values)
    suspects = int(trim * n + 1e-9)
    if not suspects:
        return values.mean(0)
    share = 1 - suspects / (2 * n)
    rows = values.transpose(0, 1)  # (B, N, K)
    least = _scores(rows).sort(dim=1, stable=True).indices[:, : max(int(share * n + 1e-9), 1)]
    rows = rows.gather(1, least[..., None].expand(-1, -1, rows.shape[-1]))
    scores = _scores(rows)
    limit = scores.sort(1).values[:, [math.ceil(share * (rows.shape[1] - 1) - 1e-9)]]  # this quantile, rounded up
    kept = (scores <= limit)[..., None]
    return (rows * kept).sum(1) / kept.sum(1)


def _scores(rows: Tensor) -> Tensor:
    """The distance of each client from the mean along the first principal direction.  (B, N, K) -> (B, N)"""
    apart = rows - rows.mean(1, keepdim=True)
    direction: Tensor = torch.linalg.eigh(apart.mT @ apart).eigenvectors[..., -1:]  # (B, K, 1), in ascending order
    return (apart @ direction).squeeze(-1).abs()
