"""FedMD (Li and Wang 2019) as the FedAL paper states it: mean logits of the others, then softmax.

The authors' code differs: it minimises the mean absolute error to an inclusive mean after pre-training on labelled
public data. Here public data has no labels (docs/deviations.md). `distance = "l1"` selects the authors' distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fedal.lazy import Tensor
from fedal.losses import Loss, l1, mse
from fedal.messages import Consensus, Message, Outputs, Teacher
from fedal.methods.class_history import ClassHistory
from fedal.methods.client import ClientRound, weighted
from fedal.methods.consensus import remembers, teacher_logits, teaching
from fedal.methods.method import Method
from fedal.methods.replay import ReplayingClient, ReplayOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs


class FedMDOptions(ReplayOptions):
    distance: Literal["kl", "l1", "mse"] = Field(
        "kl", description="distance: the paper's KL divergence, or l1/mse on logits as in other public code"
    )

    @property
    def transfer_steps(self) -> int:
        """Steps on public data per round: none without distillation."""
        return self.stage_steps if self.distillation else 0


class FedMDServer(ServerLogic):
    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.history = ClassHistory(setup.device)
        if remembers(self.hp):
            self.kept = ("history",)

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            reply = dict.fromkeys(present, self.consensus(f, {n: up[n] for n in present}))
        return reply

    def consensus(self, f: Tensor, uploads: Mapping[str, Any]) -> Message:
        """The reply to all clients that responded, from their stacked outputs f.  (N, B, K)"""
        return teaching(f, self.hp, [*uploads], self.history)


class FedMDClient(ReplayingClient):
    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for i, (x, f) in enumerate(self.public_passes(t)):
            down = yield Outputs(f)
            for lesson in self.lessons(t, i, down, x, f):
                taught = self.taught(lesson.taught, lesson.f)
                self.step(distillation=weighted(self.hp.distillation, taught.gradient))

    def taught(self, down: Any, f: Tensor) -> Loss:
        if self.hp.distance == "kl":
            return super().taught(down, f)  # Eq. (kl)
        return {"l1": l1, "mse": mse}[self.hp.distance](teacher_logits(down, f), f)


def refuse(options: FedMDOptions, n_classes: int) -> str | None:
    if options.distance != "kl" and options.space != "logits":
        return f"distance = {options.distance} compares logits; space = {options.space} sends none. Use distance = kl."
    if options.distance != "kl" and options.certainty:
        return f"certainty weighs the KL divergence; distance = {options.distance} has none. Use certainty = 0."
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
    transfer_steps=lambda options, t: int(options.transfer_steps),
    refuse=refuse,
)
