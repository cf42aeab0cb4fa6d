"""How near samples are to a client's own: kernel densities and a logistic regression, in a space made of public data.

Every party computes the same space from the public set, so that the numbers of two clients can be compared. All of it
is plain linear algebra in double precision, without randomness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedal.lazy import Tensor, torch

TURNS = 20  # of the subspace iteration
NEWTON_STEPS = 25
CHUNK = 512  # rows at a time, to bound the memory for distances


@dataclass(frozen=True)
class PublicSpace:
    """The first principal components of the public samples, scaled to a mean square norm of 1."""

    centre: Tensor  # (x,)
    axes: Tensor  # (x, d)

    @classmethod
    def of(cls, public: Tensor, width: int) -> PublicSpace:
        """(P, ...) -> d = `width` components, or fewer if there are fewer samples or values."""
        flat = public.flatten(1).double()
        centre = flat.mean(0)
        apart = flat - centre
        axes = torch.linalg.qr(apart[: min(width, *apart.shape)].T).Q
        for _ in range(TURNS):
            axes = torch.linalg.qr(apart.T @ (apart @ axes)).Q
        scale = (apart @ axes).square().sum(-1).mean().sqrt().clamp(min=1e-12)
        return cls(centre, axes / scale)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, d)"""
        return (x.flatten(1).double() - self.centre) @ self.axes


def log_density(points: Tensor, own: Tensor, bandwidth: float) -> Tensor:
    """The log of the mean Gaussian kernel of each point to all own samples.  (n, d), (m, d) -> (n,)"""
    logs = [
        torch.logsumexp(-torch.cdist(some, own).square() / (2 * bandwidth**2), 1) for some in torch.split(points, CHUNK)
    ]
    return torch.cat(logs) - math.log(len(own))


def logistic_regression(positive: Tensor, negative: Tensor, penalty: float) -> Tensor:
    """w that minimises the mean logistic loss + penalty / 2 |w|^2, by Newton's method.  (m, d), (n, d) -> (d,)

    The mean, not the sum: the sensitivity 2 / (n penalty) that private versions rely on belongs to it.
    """
    x = torch.cat([positive, -negative])  # loss log(1 + exp(-w x)), labels in the sign
    w = x.new_zeros(x.shape[1])
    ridge = penalty * torch.eye(len(w), dtype=x.dtype, device=x.device)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(-(x @ w))
        slope = penalty * w - (p @ x) / len(x)
        w = w - torch.linalg.solve((x.T * (p * (1 - p))) @ x / len(x) + ridge, slope)
    return w


def in_the_ball(points: Tensor) -> Tensor:
    """Points with norm at most 1 and a constant beside them, so that a weight of it is an intercept; norm at most 1.

    (n, d) -> (n, d + 1)
    """
    clipped = points / points.norm(dim=-1, keepdim=True).clamp(min=1)
    return torch.cat([clipped, torch.ones_like(clipped[:, :1])], 1) / math.sqrt(2)
