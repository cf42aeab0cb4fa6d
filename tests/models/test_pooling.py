"""HalvingMaxPool returns the same values as torch's max-pooling."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedal.models.pooling import HalvingMaxPool


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    "shape", [(3, 6, 8, 8), (3, 1, 28, 28), (2, 20, 5, 8), (2, 3, 7, 7), (1, 1, 200, 200), (1, 1, 4, 300)]
)
def test_values_and_gradients_equal_torchs(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randint(-2, 3, shape).double()  # many ties: the first maximum gets the gradient
    x = x.contiguous(memory_format=layout)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    pooled, expected = HalvingMaxPool()(ours), F.max_pool2d(theirs, 2, ceil_mode=True)
    assert torch.equal(pooled, expected)
    assert torch.equal(HalvingMaxPool()(x), expected)  # the path without gradients
    gradient = torch.randn_like(expected)
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(ours.grad, theirs.grad)


def test_nan_is_propagated() -> None:
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 2] = torch.nan
    assert HalvingMaxPool()(x).isnan().tolist() == [[[[False, True], [False, False]]]]


def test_a_pending_pass_keeps_little_memory() -> None:
    x = torch.randn(2, 6, 28, 28, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.nbytes) or tensor, lambda t: t):
        HalvingMaxPool()(x)
    assert sum(kept) == x.numel() / 4
