"""FedRAD (Tang et al. 2023, Sensors 23(14) 6518): keep the global model's outputs and the relations between them.

A reconstruction from the abstract and from relational distillation (Park et al. 2019). "FedRAD" of Sturluson et al.
2021, a robust aggregate, is another method.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.losses import by_autograd
from fedal.methods.parameters.less_forgetting import DistilOptions, KeepClient, Pull, averaging

SHORTEST = 1e-12  # squared distance of two outputs that count as equal


class FedRADOptions(DistilOptions):
    temperature: float = Field(3.0, gt=0, description="temperature T of the KL divergence, which has a factor T^2")
    angles: float = Field(2.0, ge=0, description="kappa: weight of the angle relations; that of distances is 1")
    related: int = Field(32, ge=3, description="samples of a batch that are related: angles need the cube of it")
    entropy_of: Literal["student", "teacher"] = Field(
        "student", description="whose predicted entropy e weighs relations (e) against single outputs (1 - e)"
    )


class FedRADClient(KeepClient):
    def regulariser(self, t: int) -> Pull:
        teacher = self.received()
        return lambda x, y, f: by_autograd(lambda z: self.penalty(teacher(x), z), f).gradient

    def penalty(self, v: Tensor, u: Tensor) -> Tensor:
        """R = (1 - e) R_kd + e R_rel for the global model's logits v and the client's u.  (B, K), (B, K) -> ()"""
        hp, T = self.hp, self.hp.temperature
        p = torch.softmax((u if hp.entropy_of == "student" else v).detach(), -1)
        e = -torch.xlogy(p, p).sum(-1) / math.log(p.shape[-1])  # (B,), between 0 and 1; a constant of the step
        log_p, log_q = torch.log_softmax(v / T, -1), torch.log_softmax(u / T, -1)
        single: Tensor = T**2 * (log_p.exp() * (log_p - log_q)).sum(-1)
        related = relations(v[: hp.related], u[: hp.related], hp.angles)
        return ((1 - e) * single).mean() + e.mean() * related


def relations(v: Tensor, u: Tensor, angles: float) -> Tensor:
    """The Huber loss between the distances, and between the angles, of all samples in v and in u.  (R, K), (R, K)"""
    huber = torch.nn.functional.smooth_l1_loss
    (target, directions), (own, own_directions) = _related(v), _related(u)
    loss = huber(own, target)
    if angles:
        loss = loss + angles * huber(_cosines(own_directions), _cosines(directions))
    return loss


def _related(z: Tensor) -> tuple[Tensor, Tensor]:
    """Distances divided by their mean over pairs, and unit vectors between all pairs.  (R, K) -> (R, R), (R, R, K)"""
    apart = z[:, None] - z
    lengths = apart.square().sum(-1).clamp(min=SHORTEST).sqrt()
    pairs = len(z) * (len(z) - 1)
    distances = lengths * (1 - torch.eye(len(z), dtype=z.dtype, device=z.device))
    return distances / (distances.sum() / pairs).clamp(min=SHORTEST), apart / lengths[..., None]


def _cosines(directions: Tensor) -> Tensor:
    """The cosine of the angle at sample i between samples j and k.  (R, R, K) -> (R, R, R)"""
    return directions @ directions.transpose(1, 2)


METHOD = averaging(
    "fedrad",
    "FedAvg that keeps relations between the global model's outputs",
    FedRADOptions,
    FedRADClient,
    "reconstruction",
)
