"""FedProto as the FedAL paper adapts it to unlabelled public data: FedMD on features instead of outputs.

The paper says only that knowledge is distilled on the features before the fully connected layer and that all clients
need the same width. Reconstructed here: the mean squared distance (over batch and width) to the mean features of the
others, and no class prototypes, because the public data has no labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fedal.aggregate import leave_one_out, mean_over_clients
from fedal.lazy import Tensor
from fedal.learners.base import FeatureLearner
from fedal.losses import mse
from fedal.messages import FeatureConsensus, PublicFeatures
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.method import Method
from fedal.methods.options import PublicOptions
from fedal.methods.outputs.fedmd import FedMDServer


class FedProtoPublicOptions(PublicOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the squared distance to the mean of the others")


class FedProtoPublicServer(FedMDServer):
    def consensus(self, f: Tensor, uploads: Mapping[str, Any]) -> FeatureConsensus:
        return FeatureConsensus(mean_over_clients(f), len(f))


class FedProtoPublicClient(ClientLogic):
    learner: FeatureLearner

    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for i in range(self.hp.tau):
            _, g = self.learner.logits_and_features(self.public.batch(t, i), self.hp.public_mode)
            down = yield PublicFeatures(g)
            distance = mse(leave_one_out(down.mean, g, down.count), g)
            self.step(features=weighted(self.hp.distillation, distance.gradient))  # the last layer does not change


METHOD = Method(
    name="fedproto-public",
    summary="FedMD on features: match the mean features of the others on public data",
    options=FedProtoPublicOptions,
    client=FedProtoPublicClient,
    server=FedProtoPublicServer,
    up=(PublicFeatures,),
    down=(FeatureConsensus,),
    needs=frozenset({"public", "features", "same-features"}),
    faithfulness="reconstruction",
    paper_options={"tau": 1},
    transfer_steps=lambda options, t: options.tau if options.distillation else 0,
)
