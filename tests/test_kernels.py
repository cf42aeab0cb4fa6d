"""Torch's private kernels match their public equivalents, and fedal works without them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedal import kernels
from fedal.discriminator import Discriminator
from fedal.engine.loop import Federation
from fedal.models.pooling import HalvingMaxPool
from splits import build_federation, build_of_table_models, run_rounds, state_of

HALVES = ([2, 2], [2, 2], [0, 0], [1, 1], True)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in kernels.PUBLIC.items():
        monkeypatch.setattr(kernels, name, kernel)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    values = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values


def each(seed: int = 0) -> list[Tensor]:
    return [numbers(7, 3, seed=seed), numbers(4, 2, 3, 3, seed=seed), numbers(5, seed=seed, dtype=torch.float32)]


def calls() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for each kernel, new ones at every call."""
    adam = dict(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, maximize=False, weight_decay=0.02)
    moments = [part.square() for part in each(3)]
    image, places = numbers(3, 4, 7, 6), kernels.PUBLIC["max_pool"](numbers(3, 4, 7, 6), *HALVES)[1]
    grouped = (numbers(3, 6, 7, 6, seed=1), image, numbers(6, 2, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    strided = (numbers(3, 6, 4, 3, seed=1), image, numbers(6, 4, 3, 3), [6], [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    return {
        "add_to_each": ((each(), 1), {}),
        "copy_to_each": ((each(), each(1)), {}),
        "adam": ((each(), each(1), each(2), moments, [], [torch.tensor(4.0) for _ in moments]), adam),
        "leaky_relu_backward": (
            (numbers(9, 5), numbers(9, 5, seed=1), 0.1, True),
            {"grad_input": torch.full((9, 5), torch.nan, dtype=torch.float64)},
        ),
        "relu_backward": ((numbers(9, 5), numbers(9, 5, seed=1), 0), {}),
        "convolution_backward": ((*grouped, [True, True, True]), {}),
        "convolution_backward, dense": ((*strided, [False, True, True]), {}),
        "max_pool": ((image, *HALVES), {}),
        "max_pool_backward": (
            (numbers(3, 4, 4, 3, seed=1), image, *HALVES, places),
            {"grad_input": torch.full_like(image, torch.nan)},
        ),
    }


@pytest.mark.parametrize("case", list(calls()))
def test_private_and_public_kernels_have_the_same_values(case: str) -> None:
    name = case.partition(",")[0]
    found, expected = (
        kernels._outcome(kernel, *calls()[case]) for kernel in (getattr(kernels, name), kernels.PUBLIC[name])
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6 if ours.dtype == torch.float32 else 1e-12, atol=1e-12)


def test_every_kernel_is_compared() -> None:
    assert {case.partition(",")[0] for case in calls()} == kernels.PUBLIC.keys()


def test_the_installed_torch_has_all_private_kernels() -> None:
    assert kernels.in_use() == "private"


def gone() -> SimpleNamespace:
    return SimpleNamespace()


def with_other_arguments() -> SimpleNamespace:
    return SimpleNamespace(double=lambda: None)


def with_other_numbers() -> SimpleNamespace:
    return SimpleNamespace(double=lambda x: 3 * x)


def with_an_effect() -> SimpleNamespace:
    return SimpleNamespace(double=lambda x: x.mul_(2))


def with_another_result() -> SimpleNamespace:
    return SimpleNamespace(double=lambda x: (2 * x, x))


@pytest.mark.parametrize("other", [gone, with_other_arguments, with_other_numbers, with_an_effect, with_another_result])
def test_a_kernel_that_behaves_differently_is_not_used(
    other: Callable[[], SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(x: Tensor) -> Tensor:
        return 2 * x

    monkeypatch.setattr(kernels, "torch", SimpleNamespace(**vars(torch) | vars(other())))
    assert kernels.chosen("double", double, numbers(3)) is double


def test_an_equivalent_kernel_is_used_and_the_check_does_not_change_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice(x: Tensor) -> Tensor:
        return x.mul_(2)

    x = numbers(3)
    monkeypatch.setattr(kernels, "torch", SimpleNamespace(**vars(torch) | {"twice": twice}))
    assert kernels.chosen("twice", lambda x: x.mul_(2), x) is twice
    assert torch.equal(x, numbers(3))


def assert_close(found: Federation, expected: Federation) -> None:
    states = (kernels._tensors(state_of(federation)) for federation in (found, expected))
    for ours, theirs in zip(*states, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_federation_learns_the_same_with_public_kernels(public: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_rounds(build_federation("fedal", dtype=torch.float64, tau=2), 3)
    monkeypatch.undo()
    assert kernels.in_use() == "private"
    assert_close(found, run_rounds(build_federation("fedal", dtype=torch.float64, tau=2), 3))


@pytest.mark.parametrize("stacked", [False, True])
def test_a_stack_with_convolutions_learns_the_same_with_public_kernels(
    stacked: bool, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = dict(model="cnn-small", precision="fp64", stacked=stacked, tau=2)
    found = run_rounds(build_of_table_models("fedal", **settings), 3)
    monkeypatch.undo()
    assert_close(found, run_rounds(build_of_table_models("fedal", **settings), 3))


@pytest.mark.parametrize("leak", [0.0, 0.2])
def test_the_discriminator_learns_the_same_with_public_kernels(
    leak: float, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> Tensor:
        roster = ["anna", "ben"]
        judge = Discriminator(roster, 3, leak=leak, lr=0.01, dtype=torch.float64)
        for step in range(3):
            judge.train_step(numbers(2, 8, 3, seed=step), roster)
        return judge.utility_grads(numbers(2, 8, 3), roster)

    found = trained()
    monkeypatch.undo()
    torch.testing.assert_close(found, trained(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 6, 8, 8), (2, 3, 7, 7), (1, 1, 1, 1)])
def test_the_pool_is_bit_identical_with_public_kernels(shape: tuple[int, ...], public: None) -> None:
    x = torch.randint(-2, 3, shape).double()  # many ties: the first maximum gets the gradient
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    pooled = HalvingMaxPool()(ours)
    expected = torch.nn.functional.max_pool2d(theirs, 2, ceil_mode=True)
    gradient = torch.randn_like(expected)
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(pooled, expected) and torch.equal(ours.grad, theirs.grad)


def test_the_record_names_the_public_kernels_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedal.records.environment import describe_environment, environment_differences

    before = describe_environment()
    assert before["kernels"] == "private"
    for name in ("adam", "max_pool"):
        monkeypatch.setattr(kernels, name, kernels.PUBLIC[name])
    warning = "kernels was private, is now private but for adam, max_pool"
    assert environment_differences(before, describe_environment()) == [warning]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc counts threads")
@pytest.mark.processes
def test_choosing_kernels_starts_no_thread_and_does_not_change_torch() -> None:
    """A process that has imported fedal may be forked, and no operator may have run on more than one thread."""
    code = """
import os, torch
before = len(os.listdir("/proc/self/task")), torch.get_num_threads(), torch.random.get_rng_state().tolist()
import fedal.kernels
after = len(os.listdir("/proc/self/task")), torch.get_num_threads(), torch.random.get_rng_state().tolist()
assert before == after, (before[:2], after[:2])
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "3"})
