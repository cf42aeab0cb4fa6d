"""WideResNet-d-k (Zagoruyko & Komodakis 2016): pre-activation blocks, widths 16, 16k, 32k, 64k, no dropout."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from fedal.models.classifier import Classifier


class WideBlock(nn.Module):
    """BN-ReLU-conv twice plus a shortcut: a 1x1 convolution if the width changes, else the identity."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(width_in), nn.ReLU())
        self.residual = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        self.shortcut = None if width_in == width else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activate(x)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        output: Tensor = shortcut + self.residual(activated)
        return output


class WideResNet(Classifier):
    """Depth d = 6n + 4 with n blocks per group, widened k times. The feature is the pooled 64k-d vector."""

    def __init__(self, depth: int, k: int, input_shape: tuple[int, ...], n_classes: int) -> None:
        blocks_per_group, rest = divmod(depth - 4, 6)
        if rest or blocks_per_group < 1:
            raise ValueError(f"the depth of a WideResNet is 6n + 4 (10, 16, 22, ...), not {depth}")
        width = 16
        layers: list[nn.Module] = [nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False)]
        for group_width, group_stride in ((16 * k, 1), (32 * k, 2), (64 * k, 2)):
            for block in range(blocks_per_group):
                layers.append(WideBlock(width, group_width, stride=group_stride if block == 0 else 1))
                width = group_width
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(nn.Sequential(*layers), nn.Linear(width, n_classes), feature_width=width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


wrn_10_1 = partial(WideResNet, 10, 1)
wrn_10_2 = partial(WideResNet, 10, 2)
wrn_16_1 = partial(WideResNet, 16, 1)
