"""Max-pooling by halves, written for small nets on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HalvingMaxPool(nn.Module):
    """`nn.MaxPool2d(2, ceil_mode=True)`: the same numbers, faster where nobody asks for a gradient.

    torch's kernel also finds where each maximum is, which only a backward pass needs; with fewer channels than a vector
    register holds it walks window by window, 8 times slower than the maximum of the four quarters of the image.
    """

    def forward(self, x: Tensor) -> Tensor:
        odd = x.shape[-2] % 2 or x.shape[-1] % 2
        if odd or (x.requires_grad and torch.is_grad_enabled()):
            return F.max_pool2d(x, 2, ceil_mode=True)
        top = torch.maximum(x[..., 0::2, 0::2], x[..., 0::2, 1::2])
        bottom = torch.maximum(x[..., 1::2, 0::2], x[..., 1::2, 1::2])
        return torch.maximum(top, bottom)
