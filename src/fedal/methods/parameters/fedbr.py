"""FedBR (Liu et al. 2023, IEEE/ACM ToN): local features must also serve the global model's last block.

A reconstruction: the closest code is FedMLB (Kim et al. 2022), whose hybrid paths FedBR restricts to some blocks. A
model has two blocks here, its features and its last layer, so there is one path: local features, global last layer.
"FedBR" of Guo et al. 2023, bias reduction, is another method.
"""

from __future__ import annotations

from typing import cast

from pydantic import Field

from fedal.learners.base import FeatureLearner, InputLearner
from fedal.losses import d_cross_entropy, kl_both
from fedal.methods.client import weighted
from fedal.methods.parameters.less_forgetting import KeepClient, KeepOptions, Pull, averaging


class FedBROptions(KeepOptions):
    hybrid_supervised: float = Field(1.0, ge=0, description="weight lambda_2 of the hybrid path's cross-entropy")
    hybrid_distillation: float = Field(1.0, ge=0, description="weight lambda_3 of KL(hybrid path || own path)")


class FedBRClient(KeepClient):
    def train(self, t: int, pull: Pull | None) -> None:
        hp, past = self.hp, cast("InputLearner", self.received())
        learner = cast("FeatureLearner", self.learner)
        for x, y in self.private_batches(t, hp.local_stages):
            f, features = learner.logits_and_features(x)
            z, back = past.through(features, at="features")  # the hybrid path
            apart, of_hybrid = kl_both(z, f)
            d_z = hp.hybrid_supervised * d_cross_entropy(z, y) + hp.hybrid_distillation * of_hybrid
            self.step(
                cross_entropy=self.d_supervised(f, y),
                keep_local=weighted(hp.keep_local * hp.hybrid_distillation, apart.gradient),
                features=weighted(hp.keep_local, back(d_z)) if hp.keep_local else None,
            )

    def regulariser(self, t: int) -> Pull | None:
        return None  # its gradient is w.r.t. the features too: see `train`


METHOD = averaging(
    "fedbr",
    "FedAvg whose local features also have to suit the global model's last layer",
    FedBROptions,
    FedBRClient,
    "reconstruction",
    needs=frozenset({"features", "input-gradients"}),
)
