"""The CelebA network of LEAF (Caldas et al. 2018): four blocks of conv-BN-maxpool-ReLU and one linear layer."""

from __future__ import annotations

from torch import nn

from fedal.models.classifier import Classifier

WIDTH = 32


class CelebaCNN(Classifier):
    """The feature vector has 32 * 6 * 6 = 1152 elements at 84x84.

    LEAF pads convolutions *and* pools to "same", so odd sides round up: 84 -> 42 -> 21 -> 11 -> 6 (`ceil_mode`).
    """

    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [
                nn.Conv2d(channels, WIDTH, 3, padding=1, bias=False),  # BN adds the bias
                nn.BatchNorm2d(WIDTH),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.ReLU(),
            ]
            channels, height, width = WIDTH, -(-height // 2), -(-width // 2)
        feature_width = WIDTH * height * width
        super().__init__(
            nn.Sequential(*layers, nn.Flatten()), nn.Linear(feature_width, n_classes), feature_width=feature_width
        )
