"""What `stacked = auto` stacks has the bits of single clients, with the kernels of AVX2 and of AVX-512."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from fedal.learners.stacked.bits import has_single_bits
from fedal.learners.stacked.chain import chain_of
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import d_cross_entropy, d_kl
from fedal.models import build
from splits import same_bits

G = 7
INPUTS, HIDDEN, CLASSES, BATCHES = (2, 13, 54, 64, 123), (8, 37, 64), (2, 3, 10), (8, 16, 32)


def chain(widths: tuple[int, ...], dtype: torch.dtype, bias: bool = True) -> TorchLearner:
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow, bias=bias), nn.ReLU()]
    return TorchLearner(nn.Sequential(*layers[:-1]), TorchSettings(weight_decay=0.01), dtype=dtype)


def has_the_bits_of_its_members(widths: tuple[int, ...], batch: int, dtype: torch.dtype) -> bool:
    torch.manual_seed(sum(widths))
    alone = [chain(widths, dtype, bias=widths[0] != 13) for _ in range(G)]
    members = [TorchLearner(learner.module, learner.settings, dtype=dtype) for learner in alone]
    stack = StackedLearner(members, 1, as_single=True)

    def step(x: Tensor, y: Tensor, shared: Tensor) -> None:
        anchor, anchors = stack.frozen(), [learner.frozen() for learner in alone]
        stack.learn(d_cross_entropy(stack.logits(x), y))
        stack.learn(d_kl(anchor(shared), stack.logits(shared)))
        for g, learner in enumerate(alone):
            learner.learn(d_cross_entropy(learner.logits(x[g].clone()), y[g]))
            learner.learn(d_kl(anchors[g](shared), learner.logits(shared)))

    for _ in range(2):
        x = torch.randn(G, batch, widths[0], dtype=dtype)
        step(x, torch.randint(0, widths[-1], (G, batch)), torch.randn(batch, widths[0], dtype=dtype))
    return same_bits([each.state_dict() for each in members], [each.state_dict() for each in alone])


def differing() -> list[object]:
    """The shapes in the table whose stack has other bits."""
    torch.set_num_threads(1)
    every = itertools.product(INPUTS, HIDDEN, CLASSES, BATCHES)
    tried = [
        ((width, hidden, classes), batch, dtype)
        for place, (width, hidden, classes, batch) in enumerate(every)
        if has_single_bits(chain_of(chain((width, hidden, classes), torch.float32).module, 1), batch, (width,))
        for dtype in (torch.float64 if place % 4 == 0 else torch.float32,)
    ]
    assert len(tried) > 40
    tried.append(((30, 64, 32, 3), 32, torch.float32))
    return [case for case in tried if not has_the_bits_of_its_members(*case)]


def test_a_stack_of_the_table_has_the_bits_of_its_members() -> None:
    assert differing() == []


@pytest.mark.processes
def test_so_it_has_with_the_kernels_of_avx2() -> None:
    limits = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    code = "import torch, test_bits; print(torch.backends.cpu.get_cpu_capability(), test_bits.differing())"
    places = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **limits, "PYTHONPATH": places}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "AVX2 []", done.stderr


def test_the_table_matters() -> None:
    """A part that begins between two vectors has other bits: without the rule, results would depend on the stack."""
    cases = [((width, 37, classes), 5, torch.float32) for width in (2, 13, 30) for classes in (2, 3, 10)]
    learners = [chain(widths, dtype).module for widths, _, dtype in cases]
    assert not any(
        has_single_bits(chain_of(learner, 1), batch, (widths[0],))
        for learner, (widths, batch, _) in zip(learners, cases, strict=True)
    )
    assert not all(has_the_bits_of_its_members(*case) for case in cases)


@pytest.mark.parametrize(("model", "expected"), [("mlp-small", True), ("cnn-small", False), ("lenet5", False)])
def test_models_in_the_table(model: str, expected: bool) -> None:
    chain = chain_of(build(model, (1, 28, 28), 10), 3)
    assert has_single_bits(chain, 32, (1, 28, 28)) is expected
