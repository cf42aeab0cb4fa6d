"""FedReg (Xu et al. 2022, arXiv 2203.02645): after each step, undo what hurts the global model on generated samples.

Its regulariser is a projection of the weights, not a loss (the FedAL paper's table says MSE). Each step follows the
gradient at a mixture with the global model, then removes the part of theta - theta^g that raises the loss on pseudo
samples x_s (old knowledge) and on slightly perturbed samples x_p. From the authors' code.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.learners.base import GradientLearner, InputLearner
from fedal.losses import d_cross_entropy, soft_cross_entropy
from fedal.methods.client import ClientRound
from fedal.methods.parameters.groups import GroupClient, Weighting
from fedal.methods.parameters.less_forgetting import UNIFORM, KeepOptions, averaging

Vector = dict[str, Tensor]
"""A tensor for each parameter."""


class FedRegOptions(KeepOptions):
    keep_local: float = Field(1.0, ge=0, description="factor of both projections; 0 drops them")
    weighting: Weighting = UNIFORM
    mixture: float = Field(0.5, ge=0, le=1, description="gamma: share of theta where the gradient is taken")
    perturbation: float = Field(0.4, gt=0, description="eta_s: step of the pseudo samples; eta_p is a hundredth of it")
    perturbation_steps: int = Field(5, ge=1, description="sign-gradient steps of the generated samples (authors: 10)")


class FedRegClient(GroupClient):
    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        learner = cast("GradientLearner", self.learner)
        start = theta = learner.trainable()  # theta^g
        past: Any = self.learner.frozen("eval") if self.hp.keep_local else None
        for x, y in self.private_batches(t, self.hp.local_stages):
            learner.set_trainable(_mixed(theta, start, self.hp.mixture))
            g1 = learner.weight_gradient(self.d_supervised(learner.logits(x), y))
            learner.set_trainable(theta)
            learner.learn(dweights=g1)
            theta = learner.trainable()
            if past is not None:
                theta = self._projected(learner, theta, start, past, x, y)
        learner.set_trainable(theta)
        yield from self.group_step()

    def _projected(
        self, learner: GradientLearner, theta: Vector, start: Vector, past: Any, x: Tensor, y: Tensor
    ) -> Vector:
        """theta - w g2 - w' g3, both gradients at the midpoint of theta and theta^g."""
        x_s, x_p = self._ascended(past, x, y)
        taught = torch.softmax(past(x_s), -1)
        learner.set_trainable(_mixed(theta, start, 0.5))
        g2 = learner.weight_gradient(soft_cross_entropy(taught, learner.logits(x_s, "frozen")).gradient)
        g3 = learner.weight_gradient(d_cross_entropy(learner.logits(x_p, "frozen"), y))
        moved = {name: theta[name] - start[name] for name in theta}
        w2 = self.hp.keep_local * _share_along(moved, g2)
        moved = {name: moved[name] - w2 * g2[name] for name in moved}
        w3 = self.hp.keep_local * _share_along(moved, g3)
        return {name: theta[name] - w2 * g2[name] - w3 * g3[name] for name in theta}

    def _ascended(self, past: InputLearner, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x_s and x_p: sign-gradient ascent on the global model's loss, inside the range of the batch, both at once."""
        low, high, labels, moving = x.amin(), x.amax(), torch.cat([y, y]), torch.cat([x, x])
        far = torch.full((len(x),), self.hp.perturbation, dtype=x.dtype, device=x.device)
        step = torch.cat([far, far / 100]).view(-1, *[1] * (x.dim() - 1))
        for _ in range(self.hp.perturbation_steps):
            f, back = past.through(moving)
            moving = torch.clamp(moving + step * back(d_cross_entropy(f, labels)).sign(), low, high)
        return moving[: len(x)], moving[len(x) :]


def _mixed(theta: Vector, start: Vector, share: float) -> Vector:
    return {name: share * theta[name] + (1 - share) * start[name] for name in theta}


def _share_along(vector: Vector, direction: Vector) -> Tensor:
    """max(0, <vector, direction> / |direction|^2); 0 for a direction of zeros."""
    length = torch.stack([part.square().sum() for part in direction.values()]).sum()
    along = torch.stack([(vector[name] * part).sum() for name, part in direction.items()]).sum()
    return torch.where(length > 0, along / length, 0).clamp(min=0)


METHOD = averaging(
    "fedreg",
    "FedAvg that projects each step so that generated samples are not forgotten",
    FedRegOptions,
    FedRegClient,
    "paper+code",
    needs=frozenset({"input-gradients", "weight-gradients"}),
)
