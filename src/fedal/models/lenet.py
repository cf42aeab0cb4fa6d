"""LeNet5 (LeCun et al. 1998) with ReLU and max-pooling, as federated distillation papers use it on MNIST."""

from __future__ import annotations

from torch import nn

from fedal.models.classifier import Classifier
from fedal.models.pooling import HalvingMaxPool


class LeNet5(Classifier):
    """Convolutions to 6, 16 and 120 channels, then 84 and K. The feature is the 120-d vector before both."""

    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        channels, side, _ = input_shape
        frame = (32 - side) // 2  # 28x28 becomes 32x32 with a frame of zeros
        body = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=frame),
            HalvingMaxPool(),  # ReLU after the pool gives the same result with a quarter of the work
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            HalvingMaxPool(),
            nn.Flatten(),
            nn.ReLU(),  # its output is the linear layer's input, so a pending pass keeps one tensor for both
            nn.Linear(
                16 * 5 * 5, 120
            ),  # the third 5x5 convolution: the image is 5x5 here, so a linear layer is equal and faster
            nn.ReLU(),
        )
        head = nn.Sequential(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, n_classes))
        super().__init__(body, head, feature_width=120)
