"""Distillation through a model that the server owns: what CFD and MHAT have in common.

Clients upload what they think of a public batch; the server's model learns the consensus and then teaches its own
opinion. The consensus includes the reader: what a student learnt from all cannot be taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedal.aggregate import mean_over_clients
from fedal.facts import setting
from fedal.lazy import Tensor, torch
from fedal.learners.base import Learner
from fedal.losses import kl_to_probs
from fedal.messages import Message, Outputs
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.options import TransferOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup
from fedal.seeding import Indices


class ServerDistillationOptions(TransferOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the KL divergence to the server's model")
    average: Literal["logits", "probs"] = Field(
        "logits", description="the server's target: softmax of the mean logits, or mean of the probabilities"
    )
    server_model: str = setting(  # never a module: a foreign run folder may name it
        "auto",
        "the server's model, a name of `fedal models`; auto: the largest candidate of the data set",
        pattern="^[a-z0-9-]+$",
        sites=True,
        changes="weights",
        expected="auto or a name of `fedal models`",
    )
    server_steps: int = Field(1, ge=1, description="steps of the server's model on each public batch")
    warmup: int = Field(
        0, ge=0, description="iterations at the start in which the server learns but does not teach yet"
    )


class DistillingServer(ServerLogic):
    """Learns from all, then teaches all. `read` and `write` say in which form opinions travel."""

    learner: Learner
    kept: ClassVar[tuple[str, ...]] = ("learner",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        assert setup.make_learner is not None
        self.learner = setup.make_learner(self.hp.server_model, None)

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        assert self.public is not None
        reply: Replies | None = None
        for i in range(self.hp.tau):
            up = yield reply
            present = [n for n in clients if n in up]
            x, ids = self.public.batch(t, i), self.public.ids(t, i)
            mean = mean_over_clients(torch.stack([self.read(n, up[n], ids) for n in present]))
            target = self.probs(mean) if self.hp.average == "logits" else mean
            for _ in range(self.hp.server_steps):
                f = self.learner.logits(x)
                self.learner.learn(kl_to_probs(target, f, self.hp.temperature).gradient)  # L_S
            f = self.learner.logits(x, "frozen")  # after the step, with the statistics of the batch it learnt from
            self.learner.forget()
            reply = {n: self.write(n, f, ids) for n in present}
        return reply

    def read(self, client_id: str, message: Message, ids: Indices) -> Tensor:
        """What a client thinks of the public samples `ids`: logits or probabilities, as `average` says."""
        assert isinstance(message, Outputs)
        return message.values if self.hp.average == "logits" else self.probs(message.values)

    def write(self, client_id: str, f: Tensor, ids: Indices) -> Message:
        """The logits of the server's model, for one client."""
        return Outputs(f)

    def probs(self, f: Tensor) -> Tensor:
        return torch.softmax(f / self.hp.temperature, -1)


class TaughtClient(ClientLogic):
    """Trains on its own data, then learns from the server's model."""

    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        weight = self.hp.distillation if t * self.hp.tau >= self.hp.warmup else 0.0
        for i, (_x, f) in enumerate(self.public_passes(t)):
            ids = self.public.ids(t, i)
            down = yield self.write(f, ids)
            taught = kl_to_probs(self.read(down, f, ids), f, self.hp.temperature)  # L_glo
            self.step(distillation=weighted(weight, taught.gradient))

    def write(self, f: Tensor, ids: Indices) -> Message:
        """The upload that says f about the public samples `ids`."""
        return Outputs(f)

    def read(self, message: Message, f: Tensor, ids: Indices) -> Tensor:
        """The server's probabilities on these samples, in the kind of numbers of the own logits f."""
        assert isinstance(message, Outputs)
        return self.probs(message.values)

    def probs(self, f: Tensor) -> Tensor:
        return torch.softmax(f / self.hp.temperature, -1)
