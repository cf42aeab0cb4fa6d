"""Small torch learners for tests, and batches to train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import d_cross_entropy
from fedal.seeding import torch_seeded
from splits import mlp


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


class WithUnusedAndFrozenParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(16, 5), nn.Linear(5, 3), nn.Linear(2, 2)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.flatten(1))))


def build(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch_seeded(seed, "test"):
        return make()


def learner_of(
    make: Callable[[], nn.Module] = mlp, dtype: torch.dtype = torch.float64, **settings: Any
) -> TorchLearner:
    return TorchLearner(build(make), TorchSettings(**{"lr": 0.01, **settings}), dtype=dtype)


def batch(seed: int = 0, n: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 4, 4, dtype=dtype, generator=generator), torch.randint(3, (n,), generator=generator)


def train(learner: TorchLearner, steps: range, dtype: torch.dtype = torch.float64) -> None:
    for step in steps:
        x, y = batch(step, dtype=dtype)
        f = learner.logits(x)
        learner.learn(d_cross_entropy(f, y))
