"""Flashback (Aljahdali et al. 2024, arXiv 2402.05558): teachers weighted class by class with the labels they have seen.

A reconstruction from abstracts. At a client, the global model teaches the classes of which it has seen more; at the
server, the average learns on public data from all uploaded models and from the previous average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.losses import class_weighted_kl
from fedal.messages import LARGEST, LabelCounts, Message, SeenLabels, Weights
from fedal.methods.client import ClientRound
from fedal.methods.parameters.groups import GroupServer
from fedal.methods.parameters.less_forgetting import DistilOptions, KeepClient, averaging
from fedal.methods.parameters.rebuilt import RebuildingServer
from fedal.methods.server import Replies, ServerRound, ServerSetup


class FlashbackOptions(DistilOptions):
    keep_local: float = Field(1.0, ge=0, le=1, description="factor of the global model's share alpha; 0: plain FedAvg")
    temperature: float = Field(3.0, gt=0, description="temperature T of the KL divergences, which have a factor T^2")
    recall: float = Field(0.1, gt=0, le=1, description="gamma: share of its labels that each participation adds")
    server_steps: int = Field(5, ge=0, description="public batches of the server's distillation in each round")


class FlashbackServer(RebuildingServer, GroupServer):
    kept = ("_seen", "_rounds", "_previous")

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._seen = torch.zeros(setup.n_classes, dtype=torch.float64, device=setup.device)  # mu^g
        self._rounds: dict[str, int] = {}  # client -> how often its labels were added
        self._previous: dict[str, Tensor] = {}  # theta^g of the last round

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply = yield from self.common_start(t, clients)
        counts = yield reply
        up = yield dict.fromkeys(counts, SeenLabels(self._seen.clamp(max=LARGEST).to(self.dtype)))
        averages = self.average_of_each(clients, up)
        present = [n for n in clients if n in up]
        if self.hp.server_steps:
            averages = self._distilled(t, present, up, {n: counts[n].counts.double() for n in present}, averages)
        for n in present:
            done = self._rounds.get(n, 0)
            added = min(1.0, (done + 1) * self.hp.recall) - min(1.0, done * self.hp.recall)
            self._seen = self._seen + added * counts[n].counts  # never more than the client has
            self._rounds[n] = done + 1
        self._previous = cast("Weights", averages[present[0]]).values
        return self.published(averages)

    def _distilled(
        self, t: int, present: Sequence[str], up: Mapping[str, Weights], counts: Mapping[str, Tensor], averages: Replies
    ) -> Replies:
        """Each average, taught class by class by all uploaded models and the previous average."""
        assert self.public is not None
        teachers = [(self.rebuilt(n, up[n].values), counts[n]) for n in present]
        if self._previous:
            teachers.append((self.rebuilt(present[0], self._previous, "previous"), self._seen))
        total = torch.stack([labels for _, labels in teachers]).sum(0).clamp(min=1e-9)
        shares = [(labels / total).to(self.dtype) for _, labels in teachers]  # alpha_c^i
        replies: dict[str, Message] = {}
        for group in self.groups(present, up):
            start, T = cast("Weights", averages[group[0]]), self.hp.temperature
            student = self.rebuilt(group[0], start.values, "student")
            for i in range(self.hp.server_steps):
                x = self.public.batch_at(t * self.hp.server_steps + i)
                f = student.logits(x)
                losses = [class_weighted_kl(a, m.predict(x), f, T) for a, (m, _) in zip(shares, teachers, strict=True)]
                student.learn(T**2 * torch.stack([loss.gradient for loss in losses]).sum(0))
            replies |= {n: Weights(student.weights(), start.samples, start.members) for n in group}
        return replies

    def expected_batch(self, t: int, i: int) -> str | None:
        return None


class FlashbackClient(KeepClient):
    def round(self, t: int) -> ClientRound:
        yield from self.common_start(t)
        own = self.private.label_counts
        down = yield LabelCounts(own.to(torch.int32))
        share = self.hp.keep_local * down.values / (own + down.values).clamp(min=1e-9)  # alpha_c^g
        T, teacher = self.hp.temperature, self.received() if self.hp.keep_local else None
        for x, y in self.private_batches(t, self.hp.local_stages):
            f = self.learner.logits(x)
            taught = None if teacher is None else T**2 * class_weighted_kl(share, teacher(x), f, T).gradient
            self.step(cross_entropy=(1 - share)[y][:, None] * self.d_supervised(f, y), keep_local=taught)
        yield from self.group_step()


METHOD = averaging(
    "flashback",
    "FedAvg with distillation weighted by the labels that each model has seen, at clients and server",
    FlashbackOptions,
    FlashbackClient,
    "reconstruction",
    server=FlashbackServer,
    up=(LabelCounts,),
    down=(SeenLabels,),
    needs=frozenset({"public"}),
    transfer_steps=lambda options, t: 0,
)
