"""What an instrument may look at: the clients' learners and a few of everybody's samples, staged once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedal.config import Config
from fedal.discriminator import Discriminator
from fedal.engine.loop import Workers
from fedal.metrics import stratified_subset
from fedal.seeding import Indices, philox_key, raw_bits
from fedal.simulate.assemble import DTYPES, Assembly
from fedal.simulate.world import World

Columns = dict[str, dict[str, float]]
"""client -> column -> value: what was measured. What belongs to no client stands under SERVER."""

SERVER = ""

MOST_SAMPLES = 1024  # of each client's data and of the public set


@dataclass(frozen=True)
class Site:
    """A federation, seen from above. Only measurements may: no client and no server sees any of this together."""

    config: Config
    world: World
    assembly: Assembly
    workers: Workers

    @property
    def discriminator(self) -> Discriminator | None:
        return getattr(self.assembly.federation.server, "discriminator", None)

    @property
    def clients(self) -> list[str]:
        return list(self.assembly.learners)

    @cached_property
    def private(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Inputs and labels of up to MOST_SAMPLES training samples of each client, chosen by the seed."""
        data, chosen = self.world.dataset, {}
        for client, indices in self.world.clients.items():
            some = indices[self._some(len(indices), client)]
            chosen[client] = self._staged(data.train_x[some]), torch.as_tensor(data.train_y[some])
        return chosen

    @cached_property
    def public(self) -> Tensor:
        """Up to MOST_SAMPLES public inputs, chosen by the seed."""
        return self._staged(self.world.public_x[self._public])

    @cached_property
    def public_labels(self) -> Tensor | None:
        """What nobody in the run knows: the labels of `public`, where the public set was held out of labelled data."""
        if self.world.public is None:
            return None
        return torch.as_tensor(self.world.dataset.train_y[self.world.public[self._public]])

    @cached_property
    def tests(self) -> Tensor:
        """The test samples that rows of the record are about."""
        labels = self.world.dataset.test_y
        return torch.as_tensor(stratified_subset(labels, self.config.eval_samples, self.config.seed))

    @cached_property
    def _public(self) -> Indices:
        return self._some(len(self.world.public_x), "public")

    def _some(self, n: int, owner: str) -> Indices:
        draws = raw_bits(philox_key(self.config.seed, "instruments", owner), 0, n)
        return np.sort(np.argsort(draws, kind="stable")[:MOST_SAMPLES])

    def _staged(self, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
        return torch.as_tensor(x).to(device=self.config.device, dtype=DTYPES[self.config.precision])
