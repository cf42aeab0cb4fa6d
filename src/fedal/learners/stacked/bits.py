"""The stacks that compute every client's numbers bit for bit as if it were alone: what `stacked = auto` may stack.

A batched matrix product calls the kernel of a single one, once per member, and gives its bits if each member's part of
every tensor begins at the same alignment as a tensor of its own. tests/learners/stacked/test_bits.py tries it for many
shapes under AVX2 and AVX-512. Not in the table, because their bits may differ: grouped convolutions and normalisation,
which use other kernels, and activations other than ReLU, whose kernels compute the last few numbers of a tensor in
another way than the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

SAME_BITS = (nn.Flatten, nn.Linear, nn.ReLU, nn.Identity)
ALIGNED = 16  # numbers: 64 bytes of fp32, torch's own alignment
SMALL = 400  # below this many products, torch computes batched matrices in a loop of its own


def has_single_bits(layers: Sequence[nn.Module], batch_size: int, sample_shape: Sequence[int]) -> bool:
    """Whether a stack of such chains has the bits of single clients."""
    if not all(isinstance(layer, SAME_BITS) for layer in layers):
        return False
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    widths = [math.prod(sample_shape), *(layer.out_features for layer in linear)]
    products = [layer.in_features * layer.out_features for layer in linear]
    return all(batch_size * width % ALIGNED == 0 for width in widths) and all(
        product % ALIGNED == 0 and product * batch_size >= SMALL for product in products
    )
