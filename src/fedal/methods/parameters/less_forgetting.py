"""FedAvg with one more term in local training: the frame of the less-forgetting methods that share weights.

At the start of a round a client holds the weights that the server sent, so a frozen copy of its model is the global
model theta^g. A method defines only its term R; the local loss is l(y, f) + keep_local * R.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from fedal.lazy import Tensor
from fedal.learners.base import Frozen
from fedal.messages import Message, Weights
from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method, Need
from fedal.methods.parameters.fedavg import FedAvgOptions, FedAvgServer
from fedal.methods.parameters.groups import GroupClient, Weighting
from fedal.methods.server import ServerLogic

Pull = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Inputs, labels and logits of a batch -> the gradient of R w.r.t. the logits.  (B, ...), (B,), (B, K) -> (B, K)"""

UNIFORM: Any = Field("uniform", description="weight of a client in the average: its private samples, or equal for all")


class KeepOptions(FedAvgOptions):
    keep_local: float = Field(1.0, ge=0, description="weight of R: keep the others' knowledge in local training")


class DistilOptions(KeepOptions):
    temperature: float = Field(1.0, gt=0, description="temperature T of the KL divergence, which has a factor T^2")


class UniformDistilOptions(DistilOptions):
    weighting: Weighting = UNIFORM


class KeepClient(GroupClient):
    """Trains with the term that `regulariser` returns, then shares its weights."""

    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        self.train(t, self.regulariser(t) if self.hp.keep_local else None)
        yield from self.group_step()

    def regulariser(self, t: int) -> Pull | None:
        """R of round t; None for a round without it."""
        raise NotImplementedError

    def train(self, t: int, pull: Pull | None) -> None:
        """The local steps of round t on l(y, f) + keep_local * R."""
        for x, y in self.private_batches(t, self.hp.local_stages):
            f = self.learner.logits(x)
            self.step(
                cross_entropy=self.d_supervised(f, y),
                keep_local=None if pull is None else self.hp.keep_local * pull(x, y, f),
            )

    def received(self, weights: dict[str, Tensor] | None = None) -> Frozen:
        """The global model of this round, or the model with other weights: fixed and in evaluation mode."""
        past = self.learner.frozen("eval")
        if weights is not None:
            past.load_state_dict(weights)
        return past


def averaging(
    name: str,
    summary: str,
    options: type[FedAvgOptions],
    client: type[ClientLogic],
    faithfulness: Any,
    *,
    server: type[ServerLogic] = FedAvgServer,
    up: tuple[type[Message], ...] = (),
    down: tuple[type[Message], ...] = (),
    needs: frozenset[Need] = frozenset(),
    **more: Any,
) -> Method:
    """The declaration of a method that averages the weights of one architecture; `up`, `down`: what it also sends."""
    return Method(
        name=name,
        summary=summary,
        options=options,
        client=client,
        server=server,
        up=(*up, Weights),
        down=(*down, Weights),
        needs=needs | {"weights", "same-architecture"},
        evaluates=more.pop("evaluates", "groups"),
        faithfulness=faithfulness,
        per=dict.fromkeys((*up, *down, Weights), "round"),
        local_steps=lambda options: int(options.local_steps),
        **more,
    )
