"""FusedAdam equals torch's fused Adam, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from fedal.learners.fused_adam import FusedAdam


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_it_takes_the_same_steps_as_torchs_fused_adam(dtype: torch.dtype, weight_decay: float) -> None:
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)).to(dtype)
    mine = mine.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    theirs = copy.deepcopy(mine)
    optimizers = (
        FusedAdam(list(mine.parameters()), 0.01, weight_decay),
        torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=weight_decay, fused=True),
    )
    for step in range(5):
        x = torch.randn(6, 2, 4, 4, dtype=dtype)
        for model, optimizer in zip((mine, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            unused = step == 2  # a parameter without a gradient does not change
            (model[:3](x) if unused else model(x)).square().sum().backward()  # type: ignore[index]
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))


@pytest.mark.processes
def test_a_learner_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from fedal.learners.torch_learner import TorchLearner
learner = TorchLearner(torch.nn.Linear(3, 2))
learner.learn(learner.logits(torch.ones(4, 3)))
learner.frozen()(torch.ones(4, 3))
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
