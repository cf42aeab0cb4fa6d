"""Three different small models that train in milliseconds and adapt to any input size.

All have 64 features, so that methods that exchange features can mix them.
"""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from fedal.models.classifier import Classifier
from fedal.models.pooling import HalvingMaxPool

FEATURES = 64


class SmallMLP(Classifier):
    """One hidden layer on the flattened input; takes vectors as well as images."""

    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), FEATURES), nn.ReLU())
        super().__init__(body, nn.Linear(FEATURES, n_classes), feature_width=FEATURES)


class SmallCNN(Classifier):
    """Two convolutions (16 and 32 channels), each halving the image, and a linear layer to the features.

    Pooling comes before normalisation and ReLU, which leaves them a quarter of the elements. Odd sides round up, so
    images of any size work.
    """

    def __init__(self, input_shape: tuple[int, ...], n_classes: int, *, batch_norm: bool) -> None:
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for width_out in (16, 32):
            layers += [nn.Conv2d(channels, width_out, 3, padding=1, bias=not batch_norm)]
            layers += [HalvingMaxPool()]
            layers += [nn.BatchNorm2d(width_out)] if batch_norm else []
            layers += [nn.ReLU()]
            channels, height, width = width_out, -(-height // 2), -(-width // 2)
        body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, FEATURES), nn.ReLU())
        super().__init__(body, nn.Linear(FEATURES, n_classes), feature_width=FEATURES)


cnn_small = partial(SmallCNN, batch_norm=False)
cnn_small_bn = partial(SmallCNN, batch_norm=True)
