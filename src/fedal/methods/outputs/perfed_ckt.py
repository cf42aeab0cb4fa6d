"""PerFed-CKT (Cho, Wang, Chiruvolu, Joshi 2021, arXiv 2109.08119; later COMET): distil the mean of similar clients.

The server groups the clients by their outputs on the public batch (C-means) and sends all centroids; each client learns
from the nearest. A personalisation method: it does not aim to make every client good on the pooled data.
A reconstruction: the authors published no code, and a public re-implementation clusters each sample separately. Joint
regulariser, output space and distance are unspecified; docs/methods/perfed-ckt.md explains the choices made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedal.aggregate import cluster_means, nearest
from fedal.errors import NotApplicableError
from fedal.lazy import Tensor, torch
from fedal.losses import kl, kl_to_probs, l2, l2_of_probs
from fedal.messages import Centroids, Outputs
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.method import Method
from fedal.methods.options import TransferOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs
from fedal.seeding import philox_key, raw_bits


class PerFedCKTOptions(TransferOptions):
    clusters: int = Field(2, ge=1, description="groups C of similar clients; at most the number of clients")
    distillation: float = Field(1.0, ge=0, description="weight lambda of the distance to the nearest centroid")
    space: Literal["probs", "logits"] = Field("probs", description="what is clustered, averaged and distilled")
    loss: Literal["l2", "kl"] = Field("l2", description="distance to the centroid: squared (sum over classes) or KL")


class PerFedCKTServer(ServerLogic):
    kept = ("cluster_of",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        if self.hp.clusters > len(setup.roster):
            raise NotApplicableError(
                f"perfed-ckt: clusters = {self.hp.clusters} for {len(setup.roster)} clients; expected at most as many."
            )
        self._key = philox_key(setup.seed, "clusters")
        self.cluster_of: dict[str, int] = {}  # each client's latest cluster, where the next C-means starts

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for i in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            s = outputs_in_space(f, self.hp)
            before = torch.tensor([self.cluster_of.get(n, -1) for n in present], device=f.device)
            first = int(raw_bits(self._key, t * self.hp.tau + i, 1)[0] % len(present))
            labels, centroids = cluster_means(s.flatten(1), before, self.hp.clusters, first)
            self.cluster_of = self.cluster_of | dict(zip(present, labels.tolist(), strict=True))
            reply = {n: Centroids(centroids.view(-1, *s.shape[1:])) for n in present}
        return reply


class PerFedCKTClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for _x, f in self.public_passes(t):
            down = yield Outputs(f)
            s = outputs_in_space(f, self.hp)
            centroid = down.values[nearest(s.flatten()[None], down.values.flatten(1))[0]]
            pull = weighted(self.hp.distillation, self._d_distance(centroid, f))
            # A client alone in its cluster has nothing to learn; a step would only follow the optimizer's momentum.
            self.step(distillation=pull if pull is not None and pull.any() else None)

    def _d_distance(self, centroid: Tensor, f: Tensor) -> Tensor:
        """Gradient w.r.t. f of the distance to the centroid.  (B, K), (B, K) -> (B, K)"""
        if self.hp.space == "probs":
            return (kl_to_probs if self.hp.loss == "kl" else l2_of_probs)(centroid, f, self.hp.temperature).gradient
        return (kl(centroid, f, self.hp.temperature) if self.hp.loss == "kl" else l2(centroid, f)).gradient


def outputs_in_space(f: Tensor, options: PerFedCKTOptions) -> Tensor:
    """Logits f, or their probabilities, as the option `space` selects.  (..., K) -> (..., K)"""
    return torch.softmax(f / options.temperature, -1) if options.space == "probs" else f


METHOD = Method(
    name="perfed-ckt",
    summary="distil the mean of the most similar clients on public data (personalisation)",
    options=PerFedCKTOptions,
    client=PerFedCKTClient,
    server=PerFedCKTServer,
    up=(Outputs,),
    down=(Centroids,),
    needs=frozenset({"public"}),
    faithfulness="reconstruction",
    paper_options={"tau": 5},
    axes={"C": "clusters"},
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)
