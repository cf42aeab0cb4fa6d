"""ResNet-18 and ResNet-34 (He et al. 2016) for small images: a 3x3 stem with stride 1 and no max-pooling."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from fedal.models.classifier import Classifier


class BasicBlock(nn.Module):
    """conv-BN-ReLU-conv-BN plus a shortcut: a 1x1 convolution with BN if the shape changes, else the identity."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = (
            None
            if width_in == width
            else nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        output: Tensor = self.relu(shortcut + self.residual(x))
        return output


class ResNet(Classifier):
    """Four groups of basic blocks with widths 64, 128, 256, 512. The feature is the pooled 512-d vector."""

    def __init__(self, blocks: tuple[int, int, int, int], input_shape: tuple[int, ...], n_classes: int) -> None:
        width = 64
        layers: list[nn.Module] = [
            nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        for n_blocks, group_width, group_stride in zip(blocks, (64, 128, 256, 512), (1, 2, 2, 2), strict=True):
            for block in range(n_blocks):
                layers.append(BasicBlock(width, group_width, stride=group_stride if block == 0 else 1))
                width = group_width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(nn.Sequential(*layers), nn.Linear(width, n_classes), feature_width=width)


resnet18 = partial(ResNet, (2, 2, 2, 2))
resnet34 = partial(ResNet, (3, 4, 6, 3))
