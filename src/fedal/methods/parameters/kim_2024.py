"""Kim et al. 2024 (federated multi-organ segmentation with partial labels), carried over to classification.

Each client distils the global model on what its own labels do not cover: there organs, here the classes of which it has
no samples. From the authors' code, of which the Dice loss and the frozen experts of single organs do not carry over.
"""

from __future__ import annotations

from pydantic import Field

from fedal.lazy import torch
from fedal.losses import sigmoid_cross_entropy
from fedal.methods.parameters.groups import Weighting
from fedal.methods.parameters.less_forgetting import UNIFORM, KeepClient, KeepOptions, Pull, averaging


class KimOptions(KeepOptions):
    weighting: Weighting = UNIFORM
    sharpening: float = Field(1.0, gt=0, description="T, which multiplies the global model's logits")


class KimClient(KeepClient):
    def regulariser(self, t: int) -> Pull:
        absent, teacher = self.private.label_counts == 0, self.received()  # the classes that are not in Y_n
        return lambda x, y, f: sigmoid_cross_entropy(torch.sigmoid(self.hp.sharpening * teacher(x)), f, absent).gradient


METHOD = averaging(
    "kim-2024",
    "FedAvg that distils the global model on the classes a client does not have",
    KimOptions,
    KimClient,
    "code",
)
