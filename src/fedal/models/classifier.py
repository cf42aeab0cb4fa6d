"""The base of all models here: a body that computes features and a head that computes logits."""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """Logits in two steps: `forward(x) = classify(features(x))`. No random layers, no in-place activations.

    Your own model needs only `forward`; methods that exchange features, such as FedProto, also need the other names.
    """

    def __init__(self, body: nn.Module, head: nn.Module, feature_width: int) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.feature_width = feature_width

    def features(self, x: Tensor) -> Tensor:
        """The representation before the head.  (B, *input_shape) -> (B, feature_width)"""
        features: Tensor = self.body(x)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Raw logits.  (B, feature_width) -> (B, K)"""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))
