"""A convolution fused with its pool: the same values, without the image between them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.stacked.pooled_convolution import SAMPLES, Kernel
from fedal.learners.torch_learner import TorchLearner
from fedal.models import build
from memory import Largest

G = 3
LAYER = nn.Conv2d(2, 4, 3, padding=1)
KERNEL = Kernel(LAYER, G)


def weights(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4 * G, 2, 3, 3, dtype=torch.float64, generator=generator)
    bias = torch.randn(4 * G, dtype=torch.float64, generator=generator)
    return weight.contiguous(memory_format=torch.channels_last).requires_grad_(), bias.requires_grad_()


def images(shared: bool, batch: int, side: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 2 if shared else 2 * G, side, side, dtype=torch.float64, generator=generator)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_(not shared)


def results(*tensors: Tensor, shared: bool) -> list[Tensor]:
    """The output and all gradients."""
    x, weight, bias = (tensor.detach() for tensor in tensors)
    pooled, steps, shape = KERNEL.halved(x, weight, bias, shared)
    d_x, *others = KERNEL.back(2 * pooled, x, weight, steps, shape, shared, not shared)
    return [pooled, *([] if d_x is None else [d_x]), *others]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("side", [8, 7])
@pytest.mark.parametrize("batch", [SAMPLES, SAMPLES + 3, 1])
def test_it_matches_the_two_layers(shared: bool, side: int, batch: int) -> None:
    x, (weight, bias) = images(shared, batch, side), weights()
    for_each = x.repeat(1, G, 1, 1) if shared else x
    expected = F.max_pool2d(F.conv2d(for_each, weight, bias, padding=1, groups=G), 2, ceil_mode=True)
    wanted = [tensor for tensor in (x, weight, bias) if tensor.requires_grad]
    gradients = torch.autograd.grad(expected.square().sum(), wanted)
    for ours, theirs in zip(results(x, weight, bias, shared=shared), [expected, *gradients], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(KERNEL.pooled(x, weight, bias, shared), expected, rtol=0, atol=1e-12)


def test_threads_and_earlier_computations_leave_no_trace() -> None:
    def alone(seed: int) -> list[Tensor]:
        return results(images(False, 5 + seed, 8, seed), *weights(seed), shared=False)

    expected = [alone(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(alone, [*range(8), *range(8)]))
    for ours, theirs in zip(found, expected * 2, strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_the_forward_pass_never_builds_the_full_image() -> None:
    batch = 4 * SAMPLES
    x, (weight, bias) = images(False, batch, 8), weights()
    full = batch * 4 * G * 8 * 8
    with Largest() as learning, torch.no_grad():
        KERNEL.halved(x, weight, bias, False)
    with Largest() as looking, torch.no_grad():
        KERNEL.pooled(x, weight, bias, False)
    assert learning.numbers == looking.numbers == full // 4


def test_a_stack_of_lenets_keeps_about_a_quarter_of_a_megabyte_per_waiting_client() -> None:
    """Together with weights, two moments and an anchor of 0.25 MB each, a thousand clients fit into memory."""
    members = [TorchLearner(build("lenet5", (1, 28, 28), 10)) for _ in range(5)]
    stack = StackedLearner(members, 3)
    x = torch.randn(32, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    lasting = {parameter.data_ptr() for parameter in stack._net.parameters} | {x.data_ptr()}
    stack.logits(x)
    (backs,) = stack._pending
    held = [cell.cell_contents for back in backs for cell in back.__closure__ or ()]
    kept = {
        tensor.untyped_storage().data_ptr(): tensor
        for tensor in held
        if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in lasting
    }
    assert len(kept) == 6  # offsets of two pools, the inputs of the second convolution and of three linear layers
    assert sum(tensor.nbytes for tensor in kept.values()) / len(members) < 0.29e6
