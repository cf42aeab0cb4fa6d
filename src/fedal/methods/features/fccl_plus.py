"""FCCL+ (Huang, Ye, Shi, Du, TPAMI 2023): FCCL plus similarities of public samples, and non-target distillation.

Besides logits, clients exchange the similarities between the samples of a public batch: cosines of features, never the
features, so widths may differ. In local training, the previous model teaches on all classes except the label.
From the authors' code; docs/methods/fccl+.md lists the differences: one forward pass for logits and features, a
std that fits its correlation, teachers in evaluation mode, local training before the exchange, no teacher in round 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fedal.aggregate import mean_over_clients
from fedal.lazy import Tensor, torch
from fedal.learners.base import FeatureLearner
from fedal.losses import non_target, similarities, similarity_kl
from fedal.messages import ConsensusAndSimilarities, OutputsAndSimilarities
from fedal.methods.client import ClientRound, weighted
from fedal.methods.correlation import CorrelationClient, CorrelationOptions
from fedal.methods.method import Method
from fedal.methods.outputs.fedmd import FedMDServer


class FCCLPlusOptions(CorrelationOptions):
    temperature: float = Field(3.0, gt=0, description="temperature T of the non-target distillation")
    renormalise: bool = Field(
        False, description="softmax over the K - 1 other classes only: a true KL divergence, unlike the authors' code"
    )
    similarity: float = Field(3.0, ge=0, description="weight mu of the similarity distillation on public data")
    similarity_temperature: float = Field(0.02, gt=0, description="temperature omega of the similarities")


class FCCLPlusServer(FedMDServer):
    def consensus(self, f: Tensor, uploads: Mapping[str, Any]) -> ConsensusAndSimilarities:
        similar = mean_over_clients(torch.stack([upload.similarities for upload in uploads.values()]))
        return ConsensusAndSimilarities(mean_over_clients(f), len(f), similar)


class FCCLPlusClient(CorrelationClient):
    learner: FeatureLearner

    def round(self, t: int) -> ClientRound:
        for x, y in self.private_batches(t):
            f = self.learner.logits(x)
            self.step(cross_entropy=self.d_supervised(f, y), inter=self._pull(x, f, y))
        self.teachers["inter"] = self.snapshot()
        omega = self.hp.similarity_temperature
        for i in range(self.hp.tau):
            x = self.public.batch(t, i)
            f, g = self.learner.logits_and_features(x, self.hp.public_mode)
            down = yield OutputsAndSimilarities(f, similarities(g, omega))
            self.renew_optimizer()
            self.step(
                correlation=self.d_correlation(x, f, down),
                features=weighted(self.hp.similarity, similarity_kl(down.similarities, g, omega).gradient),
            )
        self.renew_optimizer()

    def _pull(self, x: Tensor, f: Tensor, y: Tensor) -> Tensor | None:
        """Gradient of weight * T^2 * non-target distillation from the previous model; None in the first round."""
        if not self.hp.inter or "inter" not in self.teachers:
            return None
        T = self.hp.temperature
        return weighted(
            self.hp.inter * T**2, non_target(self.teachers["inter"](x), f, y, T, self.hp.renormalise).gradient
        )


def _refuse(options: FCCLPlusOptions, n_classes: int) -> str | None:
    if options.renormalise and n_classes == 2:
        return "renormalise = true has no effect with 2 classes: only one is not the label. Set it to false."
    return None


METHOD = Method(
    name="fccl+",
    summary="FCCL, and similarities of public samples; the previous model teaches on all classes except the label",
    options=FCCLPlusOptions,
    client=FCCLPlusClient,
    server=FCCLPlusServer,
    up=(OutputsAndSimilarities,),
    down=(ConsensusAndSimilarities,),
    needs=frozenset({"public", "features"}),
    faithfulness="code",
    paper_options={"tau": 5},
    refuse=_refuse,
    transfer_steps=lambda options, t: options.tau if options.correlation or options.similarity else 0,
)
