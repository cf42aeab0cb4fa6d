"""ExpGuard (Roux, Zimmer, Pokutta, ICLR 2025; arXiv 2402.12265): clients lose weight while they are outliers.

The teacher is a weighted mean of probabilities. In every exchange a client's weight shrinks by exp(-eta s), s its mean
distance from a robust value, which is only the yardstick. From the authors' code, with log-weights: their float32
weights underflow within a few hundred exchanges. A floor keeps honest specialists from being silenced for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedal.aggregate import RobustRule, combined
from fedal.lazy import Tensor, torch
from fedal.messages import Outputs, Teacher
from fedal.methods.consensus import AggregateOptions, DistillingClient, in_space
from fedal.methods.method import Method
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs
from fedal.weighting import mixture, shares_of


class ExpGuardOptions(AggregateOptions):
    aggregate: RobustRule = Field("median", description="the robust value from which distances are measured")
    space: Literal["probabilities"] = Field("probabilities", description="what is combined")
    distillation: float = Field(1.0, ge=0, description="weight of the KL divergence to the weighted mean")
    guard: float = Field(1.0, ge=0, description="eta per round: how fast outliers lose weight; 0: equal weights")
    floor: float = Field(0.1, ge=0, le=1, description="smallest weight, relative to the largest; 0: no floor")


class ExpGuardServer(ServerLogic):
    kept = ("log_weights",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._roster = setup.roster
        self.log_weights = torch.zeros(len(setup.roster), dtype=setup.dtype, device=setup.device)

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            y = in_space(f, self.hp)
            weights = self._guarded(present, y)
            teacher = mixture(y, shares_of(weights)[:, None]).clamp(min=0)
            reply = dict.fromkeys(present, Teacher(teacher))
        self.observed = {"smallest_weight": self.log_weights.exp().min()}
        return reply

    def _guarded(self, present: Sequence[str], y: Tensor) -> Tensor:
        """The weights of the clients that responded, after their distances s_n.  (n, B, K) -> (n,)"""
        robust = combined(y, self.hp.aggregate, "probabilities", self.hp.trim)
        distances = (y - robust).norm(dim=-1).mean(-1)  # s_n
        rows = torch.tensor([self._roster.index(n) for n in present], device=y.device)
        lowered = self.log_weights.index_add(0, rows, distances, alpha=-self.hp.guard / self.hp.tau)
        lowered = lowered - lowered.max()
        self.log_weights = lowered.clamp(min=math.log(self.hp.floor)) if self.hp.floor else lowered
        return self.log_weights[rows].exp()


METHOD = Method(
    name="expguard",
    summary="FedMD with mean probabilities and weights that shrink while a client is an outlier",
    options=ExpGuardOptions,
    client=DistillingClient,
    server=ExpGuardServer,
    up=(Outputs,),
    down=(Teacher,),
    needs=frozenset({"public"}),
    faithfulness="code",
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)
