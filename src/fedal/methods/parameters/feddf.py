"""FedDF (Lin et al. 2020): parameters are averaged inside an architecture, outputs distilled between architectures.

`transfer = "clients"` is what the FedAL paper describes (tau steps of client-side distillation, then group averages),
`"server"` is the authors' version: the server distils the mean logits of all uploaded models into each group's average.
Differences from the authors' server: no labelled validation set (a fixed number of steps) and a constant step size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from pydantic import Field

from fedal.aggregate import combined
from fedal.errors import NotApplicableError
from fedal.lazy import torch
from fedal.learners.base import WeightLearner
from fedal.losses import kl, kl_to_probs
from fedal.messages import Consensus, Message, Outputs, Teacher, Weights
from fedal.methods.client import ClientRound
from fedal.methods.consensus import in_space
from fedal.methods.method import Method
from fedal.methods.outputs import fedmd
from fedal.methods.outputs.fedmd import FedMDClient, FedMDOptions, FedMDServer
from fedal.methods.parameters.groups import GroupClient, GroupOptions, GroupServer
from fedal.methods.server import Replies, ServerRound, ServerSetup, Uploads, after


class FedDFOptions(GroupOptions, FedMDOptions):
    transfer: Literal["clients", "server"] = Field("clients", description="where to distil: see docs/methods/feddf.md")
    server_steps: int = Field(20, ge=1, description="steps of transfer=server in each round (authors: up to 10000)")

    @property
    def transfer_steps(self) -> int:
        return super().transfer_steps if self.transfer == "clients" else 0


class FedDFServer(GroupServer, FedMDServer):
    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._make_learner = setup.make_learner
        objects = [name for name in self._architectures.values() if name.startswith("<")]
        if self.hp.transfer == "server" and objects:
            raise NotApplicableError(
                f"feddf with transfer=server must rebuild every model at the server, but {objects[0]} has no name. "
                "Name it package.module:factory, or use transfer=clients."
            )

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        if self.hp.transfer == "clients":
            reply = yield from after(reply, FedMDServer.round(self, t, clients))
        up = yield reply
        averages = self.average_of_each(clients, up)
        return averages if self.hp.transfer == "clients" else self._distilled(t, clients, up, averages)

    def expected_batch(self, t: int, i: int) -> str | None:
        return super().expected_batch(t, i) if self.hp.transfer == "clients" else None

    def _distilled(self, t: int, clients: Sequence[str], up: Uploads, averages: Replies) -> Replies:
        """Each group's average, distilled from the mean logits of all uploaded models, which do not change."""
        assert self.public is not None
        batches = [self.public.batch_at(t * self.hp.server_steps + i) for i in range(self.hp.server_steps)]
        ensemble = torch.stack([self._answers(n, up[n], batches) for n in clients if n in up])
        values = in_space(ensemble.flatten(1, 2), self.hp)
        teachers = combined(values, self.hp.aggregate, self.hp.space, self.hp.trim).view(ensemble.shape[1:])
        distance = kl if self.hp.space == "logits" else kl_to_probs
        replies: dict[str, Message] = {}
        for group in self.groups(clients, up):
            start = cast(Weights, averages[group[0]])
            student = self._learner(group[0], start)
            for x, teacher in zip(batches, teachers, strict=True):
                f = student.logits(x, self.hp.public_mode)
                student.learn(distance(teacher, f, self.hp.temperature).gradient)
            replies |= {n: Weights(student.weights(), start.samples, max(2, start.members)) for n in group}
        return replies

    def _answers(self, client_id: str, message: Weights, batches: Sequence[torch.Tensor]) -> torch.Tensor:
        teacher = self._learner(client_id, message)
        return torch.stack([teacher.predict(x) for x in batches])

    def _learner(self, client_id: str, message: Weights) -> WeightLearner:
        assert self._make_learner is not None
        learner = cast("WeightLearner", self._make_learner(self._architectures[client_id], None))
        learner.load_weights(message.values)
        return learner


class FedDFClient(GroupClient, FedMDClient):
    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        if self.hp.transfer == "clients":
            yield from FedMDClient.round(self, t)
        else:
            self.local_training(t)
        yield from self.group_step()


def _refuse(options: FedDFOptions, n_classes: int) -> str | None:
    if options.replay and options.transfer == "server":
        return f"replay = {options.replay}: with transfer = server, clients are taught nothing that they could repeat."
    if options.certainty and options.transfer == "server":
        return f"certainty = {options.certainty:g}: with transfer = server, clients are taught nothing to weigh."
    return fedmd.refuse(options, n_classes)


METHOD = Method(
    name="feddf",
    summary="FedMD between architectures, averaged weights inside each",
    options=FedDFOptions,
    client=FedDFClient,
    server=FedDFServer,
    up=(Outputs, Weights),
    down=(Consensus, Outputs, Teacher, Weights),
    instead_of={Outputs: Consensus, Teacher: Consensus},
    needs=frozenset({"public", "weights", "every-client"}),  # each architecture has a common start in round 0
    evaluates="groups",
    faithfulness="paper+code",
    paper_options={"tau": 10},
    per={Weights: "round"},
    transfer_steps=lambda options, t: int(options.transfer_steps),
    refuse=_refuse,
)
