"""Distillation through a model that the server owns, as CFD and MHAT do.

Clients upload outputs on a public batch; the server's model learns their mean and then teaches its own outputs. The
mean includes the receiving client, because what the model learned from all clients cannot be separated again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.aggregate import combined
from fedal.lazy import Tensor, torch
from fedal.learners.base import Learner
from fedal.losses import kl_to_probs
from fedal.messages import Message, Outputs
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.consensus import AggregateOptions, in_space
from fedal.methods.options import SERVER_MODEL
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup
from fedal.seeding import Indices


class ServerDistillationOptions(AggregateOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the KL divergence to the server's model")
    server_model: str = SERVER_MODEL
    server_steps: int = Field(1, ge=1, description="steps of the server's model on each public batch")
    warmup: int = Field(0, ge=0, description="initial iterations in which the server learns but does not teach yet")

    def transfer_steps(self, t: int) -> int:
        """Steps of a client on public data in round t: none while the server does not teach."""
        return self.tau if self.distillation and t * self.tau >= self.warmup else 0


class DistillingServer(ServerLogic):
    """Learns from all clients, then teaches them. `read` and `write` define how outputs are encoded."""

    learner: Learner
    kept: tuple[str, ...] = ("learner",)

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
            values = torch.stack([self.read(n, up[n], ids) for n in present])
            value = combined(values, self.hp.aggregate, self.hp.space, self.hp.trim, self.hp.sharpness)
            target = self.probs(value) if self.hp.space == "logits" else value
            for _ in range(self.hp.server_steps):
                f = self.learner.logits(x)
                self.learner.learn(kl_to_probs(target, f, self.hp.temperature).gradient)  # L_S
            f = self.learner.logits(x, "frozen")  # after the step, with the statistics of the batch it learned from
            self.learner.forget()
            reply = {n: self.write(n, f, ids) for n in present}
        return reply

    def read(self, client_id: str, message: Message, ids: Indices) -> Tensor:
        """A client's logits or probabilities, as `space` selects, on the public samples `ids`.  -> (B, K)"""
        assert isinstance(message, Outputs)
        return in_space(message.values, self.hp)

    def write(self, client_id: str, f: Tensor, ids: Indices) -> Message:
        """The reply to one client: the logits of the server's model.  (B, K), (B,)"""
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
        """The upload of logits f on the public samples `ids`.  (B, K), (B,)"""
        return Outputs(f)

    def read(self, message: Message, f: Tensor, ids: Indices) -> Tensor:
        """The server's probabilities on these samples, in the dtype of the logits f.  -> (B, K)"""
        assert isinstance(message, Outputs)
        return self.probs(message.values)

    def probs(self, f: Tensor) -> Tensor:
        return torch.softmax(f / self.hp.temperature, -1)
