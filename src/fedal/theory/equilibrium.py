"""Tests for the equilibrium (Theorem equilibrium), where all outputs coincide and no discriminator beats chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedal.discriminator import Discriminator
from fedal.theory.outputs import agreement, distances, zeta

LARGEST_DISTANCE = 0.05  # outputs coincide if no pair of clients has a larger total variation distance
FRESH_STEPS, FRESH_LR = 300, 3e-3


@dataclass(frozen=True)
class Equilibrium:
    """Measurements on the public set, with the final models."""

    largest_zeta: float
    mean_distance: float  # over pairs of clients
    largest_distance: float
    agreement: float  # share of samples for which all clients predict the same class
    chance: float  # 1 / N
    margin: float  # two standard errors of an accuracy at chance
    discriminator: float | None  # accuracy of the run's own discriminator, if it tells clients apart
    fresh: float  # accuracy of a newly trained discriminator on held-out samples

    @property
    def outputs_coincide(self) -> bool:
        return self.largest_distance <= LARGEST_DISTANCE

    @property
    def discriminator_at_chance(self) -> bool | None:
        return None if self.discriminator is None else self.discriminator <= self.chance + self.margin

    @property
    def distinguishable(self) -> bool:
        """Whether the fresh discriminator can tell the clients apart."""
        return self.fresh > self.chance + self.margin

    @property
    def verdict(self) -> str:
        if self.outputs_coincide and not self.distinguishable:
            return "at the equilibrium: the clients' outputs coincide and cannot be told apart"
        if self.outputs_coincide:
            return f"near the equilibrium: outputs differ by {self.largest_distance:.1%} at most, but can be told apart"
        if self.discriminator_at_chance and self.distinguishable:
            return "not at the equilibrium: the run's discriminator is at chance, but a fresh one tells clients apart"
        if self.distinguishable:
            return "not at the equilibrium: outputs differ and can be told apart"
        return "not at the equilibrium: outputs differ, but do not identify their client"


def check_equilibrium(
    outputs: Tensor, discriminator: Discriminator | None, roster: Sequence[str], seed: int = 0
) -> Equilibrium:
    """Tests for the equilibrium. `outputs` are the logits of the roster's clients on the same samples, (N, M, K)."""
    n, m = len(outputs), outputs.shape[1]
    apart = distances(outputs)
    pairs = apart[~torch.eye(n, dtype=torch.bool)]
    held_out = m - m // 2
    return Equilibrium(
        largest_zeta=float(zeta(outputs).max()),
        mean_distance=float(pairs.mean()) if len(pairs) else 0.0,
        largest_distance=float(pairs.max()) if len(pairs) else 0.0,
        agreement=agreement(outputs),
        chance=1 / n,
        # The N outputs for one sample are not independent draws: only the samples count.
        margin=2 * math.sqrt((1 - 1 / n) / n / held_out),
        discriminator=_accuracy(discriminator, outputs)
        if discriminator and discriminator.tells_clients_apart
        else None,
        fresh=_fresh_accuracy(outputs, roster, seed),
    )


def _fresh_accuracy(outputs: Tensor, roster: Sequence[str], seed: int) -> float:
    """The accuracy of a new discriminator, trained on one half of the samples and tested on the other."""
    half = outputs.shape[1] // 2
    fresh = Discriminator(roster, outputs.shape[2], lr=FRESH_LR, seed=seed, dtype=outputs.dtype)
    for _ in range(FRESH_STEPS):
        fresh.train_step(outputs[:, :half], roster)
    return _accuracy(fresh, outputs[:, half:])


def _accuracy(discriminator: Discriminator, outputs: Tensor) -> float:
    with torch.no_grad():
        guesses = discriminator.module(discriminator.inputs(outputs)).argmax(-1)
    return float((guesses == torch.arange(len(outputs))[:, None]).double().mean())
