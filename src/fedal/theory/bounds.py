"""The two generalisation bounds of the paper, term by term: FedAL's, Eq. (bound_FDAL), and FedMD's, Eq. (gen_fedmd).

All values are in nats. Paper: sqrt(2 log 2 zeta_n), Pinsker's inequality with the divergence in bits. Here:
sqrt(2 zeta_n), because zeta_n is measured in nats like every loss; both are the same number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

CONFIDENCE = 0.95


@dataclass(frozen=True)
class ClientTerms:
    """The terms of the bounds for one client."""

    risk: float  # cross-entropy of its model on its own training samples
    zeta: float  # Eq. (assum), in nats
    public_distance: float  # d(P, D_n)
    global_distance: float  # d(D, D_n)
    joint_loss: float | None  # lambda_n; None if it was not estimated


@dataclass(frozen=True)
class Bound:
    """The right-hand side, term by term. `total` is its sum without `sampling`, which training does not change."""

    risk: float
    disagreement: float
    distance: float
    joint_loss: float | None
    sampling: float

    @property
    def total(self) -> float:
        return self.risk + self.disagreement + self.distance + (self.joint_loss or 0.0)


def fedal_bound(clients: Sequence[ClientTerms], samples: int) -> Bound:
    """Eq. (bound_FDAL), with `samples` training samples at every client."""
    n = len(clients)
    share = (n - 1) / n  # (N - 1) / N^2 times a sum = (N - 1) / N times a mean
    return Bound(
        risk=fmean(c.risk for c in clients),
        disagreement=share * fmean(2 * math.sqrt(2 * c.zeta) for c in clients),
        distance=share * fmean(c.public_distance for c in clients),
        joint_loss=_mean_joint_loss(clients, 2 * share),
        sampling=sampling_term(samples),
    )


def fedmd_bound(clients: Sequence[ClientTerms], samples: int) -> Bound:
    """Eq. (gen_fedmd), with the same lambda_n."""
    return Bound(
        risk=fmean(c.risk for c in clients),
        disagreement=0.0,
        distance=fmean(c.global_distance / 2 for c in clients),
        joint_loss=_mean_joint_loss(clients, 1.0),
        sampling=sampling_term(samples),
    )


def sampling_term(samples: int, confidence: float = CONFIDENCE) -> float:
    """(4 + sqrt(log growth(2 phi))) / (delta sqrt(2 phi)) with growth(2 phi) = 2^(2 phi).

    This is the largest value of a growth function, and networks with more weights than samples attain it. The term then
    stays above sqrt(log 2) / delta for any number of samples: it is vacuous in both bounds.
    """
    return (4 + math.sqrt(2 * samples * math.log(2))) / ((1 - confidence) * math.sqrt(2 * samples))


def _mean_joint_loss(clients: Sequence[ClientTerms], weight: float) -> float | None:
    known = [c.joint_loss for c in clients if c.joint_loss is not None]
    return weight * fmean(known) if len(known) == len(clients) else None
