"""FedProto (Tan et al., AAAI 2022): clients share one feature vector per class, the prototype. No public data.

From the authors' code: the mean squared distance (over batch and width), prototypes collected while training, an
unweighted mean over the clients that have a class. `average = "samples"` is the weighting of their paper.
Differences: a round is tau steps instead of local epochs, and clients predict with their last layer, as in every other
method here. The authors also classify by the nearest prototype among a client's classes (docs/methods/fedproto.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedal.aggregate import ClassSums, class_means, class_weights
from fedal.lazy import Tensor, torch
from fedal.learners.base import FeatureLearner
from fedal.losses import mse
from fedal.messages import ClassFeatures, Prototypes
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup, weighted
from fedal.methods.method import Method
from fedal.methods.options import ClassMeanOptions
from fedal.methods.server import ServerLogic, ServerRound, ServerSetup


class FedProtoOptions(ClassMeanOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the squared distance to the prototype of the label")
    prototypes: Literal["training", "fresh"] = Field(
        "training",
        description="features of the round's batches during training, or of all private samples after it (slower)",
    )


class FedProtoServer(ServerLogic):
    kept = ("prototypes",)

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.prototypes = torch.zeros(setup.n_classes, setup.feature_width, dtype=setup.dtype, device=setup.device)

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        up = yield None
        present = [n for n in clients if n in up]
        counts = torch.stack([up[n].counts for n in present])  # (N, K)
        rows = self.prototypes.new_zeros(len(present), *self.prototypes.shape)
        for mine, shown, n in zip(rows, counts > 0, present, strict=True):
            mine[shown] = up[n].rows
        means = class_means(rows, class_weights(counts, self.hp.average))
        shown_by_any = (counts > 0).any(0)[:, None]
        self.prototypes = torch.where(shown_by_any, means, self.prototypes)  # otherwise keep the last one
        return {n: Prototypes(self.prototypes) for n in present}


class FedProtoClient(ClientLogic):
    learner: FeatureLearner
    kept = ("prototypes",)

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        shape = self.private.n_classes, self.learner.feature_width
        self.prototypes = torch.zeros(shape, device=self.device)

    def round(self, t: int) -> ClientRound:
        seen = ClassSums.empty(*self.prototypes.shape, device=self.device)
        for x, y in self.private_batches(t, self.hp.local_stages):
            f, g = self.learner.logits_and_features(x)
            seen.add(g, y)
            distance = mse(self._target(g, y), g)
            self.step(cross_entropy=self.d_supervised(f, y), features=weighted(self.hp.distillation, distance.gradient))
        if self.hp.prototypes == "fresh":
            seen = self._mean_of_everything()
        down = yield ClassFeatures(seen.means(g.dtype)[seen.counts > 0], seen.counts)
        self.prototypes = down.rows

    def _target(self, g: Tensor, y: Tensor) -> Tensor:
        """The prototype of each label; a sample whose class has none is its own target and adds nothing."""
        rows = self.prototypes.to(g.dtype)[y]
        return torch.where(rows.any(-1, keepdim=True), rows, g)

    def _mean_of_everything(self) -> ClassSums:
        seen = ClassSums.empty(*self.prototypes.shape, device=self.device)
        for x, y in self.private.everything():
            seen.add(self.learner.logits_and_features(x, "eval")[1], y)
            self.learner.forget()
        return seen


METHOD = Method(
    name="fedproto",
    summary="pull features towards the mean features of their class over all clients; no public data",
    options=FedProtoOptions,
    client=FedProtoClient,
    server=FedProtoServer,
    up=(ClassFeatures,),
    down=(Prototypes,),
    needs=frozenset({"features", "same-features"}),
    faithfulness="code",
    paper_options={"tau": 1},
    per={ClassFeatures: "round", Prototypes: "round"},
    local_steps=lambda options: int(options.local_steps),
)
