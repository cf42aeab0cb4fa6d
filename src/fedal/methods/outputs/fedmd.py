"""FedMD (Li and Wang 2019) as the FedAL paper states it: mean logits of the others, then softmax.

The authors' code differs: it minimises the mean absolute error to an inclusive mean after pre-training on labelled
public data. Here public data has no labels (docs/deviations.md). `distance = "l1"` selects the authors' distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from fedal.lazy import Tensor
from fedal.losses import l1, mse
from fedal.messages import Consensus, Message, Outputs, Teacher
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.consensus import AggregateOptions, divergence, teacher_logits, teaching
from fedal.methods.method import Method
from fedal.methods.server import Replies, ServerLogic, ServerRound, stack_outputs


class FedMDOptions(AggregateOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the distance to the mean of the others")
    distance: Literal["kl", "l1", "mse"] = Field(
        "kl", description="distance: the paper's KL divergence, or l1/mse on logits as in other public code"
    )


class FedMDServer(ServerLogic):
    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            reply = dict.fromkeys(present, self.consensus(f, [up[n] for n in present]))
        return reply

    def consensus(self, f: Tensor, uploads: Sequence[Any]) -> Message:
        """The reply to all clients that responded, from their stacked outputs f.  (N, B, K)"""
        return teaching(f, self.hp)


class FedMDClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for _x, f in self.public_passes(t):
            down = yield Outputs(f)
            if self.hp.distance == "kl":
                loss = divergence(down, f, self.hp.temperature)  # Eq. (kl)
            else:
                loss = {"l1": l1, "mse": mse}[self.hp.distance](teacher_logits(down, f), f)
            self.step(distillation=weighted(self.hp.distillation, loss.gradient))


def refuse(options: FedMDOptions, n_classes: int) -> str | None:
    if options.distance != "kl" and options.space != "logits":
        return f"distance = {options.distance} compares logits; space = {options.space} sends none. Use distance = kl."
    return None


METHOD = Method(
    name="fedmd",
    summary="distil the mean logits of the others on public data",
    options=FedMDOptions,
    client=FedMDClient,
    server=FedMDServer,
    up=(Outputs,),
    down=(Consensus, Outputs, Teacher),
    instead_of={Outputs: Consensus, Teacher: Consensus},
    needs=frozenset({"public"}),
    paper_options={"tau": 1},
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
    refuse=refuse,
)
