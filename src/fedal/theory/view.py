"""A view of the whole federation for measurements: all learners and data, staged once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.data.streams import Samples
from fedal.discriminator import Discriminator
from fedal.engine.loop import Federation, Workers
from fedal.engine.player import LocalPlayer
from fedal.errors import FedalError
from fedal.learners.base import Learner
from fedal.methods.client import ClientLogic
from fedal.metrics import accuracy, evaluate, stratified_subset
from fedal.precision import dtype_of
from fedal.seeding import Indices, philox_key, raw_bits

Columns = dict[str, dict[str, float]]
"""client -> column -> measured value. Columns that belong to no client are under SERVER."""

SERVER = ""

MAX_SAMPLES = 1024  # of each client's data and of the public set


class FederationView:
    """The learners and data of all clients. Only measurements may use it: no client or server sees all of this."""

    def __init__(
        self,
        config: Config,
        split: DataSplit,
        federation: Federation,
        learners: Mapping[str, Learner],
        workers: Workers,
    ) -> None:
        self.config, self.split, self.federation, self.learners = config, split, federation, learners
        self.workers = workers
        data, seed = split.dataset, config.seed
        self._tests = Samples(data.test_x, dtype_of(config.precision), config.device)
        self._test_labels = torch.as_tensor(data.test_y, device=config.device)
        self.all_tests = torch.arange(len(data.test_y), device=config.device)
        some = stratified_subset(data.test_y, config.eval_samples, seed)
        self.some_tests = torch.as_tensor(some, device=config.device)  # used for the rows during training

    @property
    def discriminator(self) -> Discriminator | None:
        return getattr(self.federation.server, "discriminator", None)

    @property
    def clients(self) -> list[str]:
        return list(self.learners)

    def logic(self, client: str) -> ClientLogic:
        """A client's half of the method, if the client is in this process and not in a stack."""
        players = {player.names: player for player in self.federation.players if isinstance(player, LocalPlayer)}
        return players[client,].logic

    def test_accuracy(self, learner: Learner, indices: Tensor) -> float:
        """The accuracy of a model on these test samples."""
        return accuracy(learner, self._tests, self._test_labels, indices)

    def evaluate_all(self, indices: Tensor) -> Columns:
        found = self.workers.map(lambda client: self.evaluate(client, indices), self.clients)
        return dict(zip(self.clients, found, strict=True))

    def evaluate(self, client: str, indices: Tensor) -> dict[str, float]:
        """All measurements of a client's model on these test samples."""
        try:
            return evaluate(self.learners[client], self._tests, self._test_labels, indices)
        except FedalError as error:
            raise type(error)(f'client "{client}": {error}') from None

    @cached_property
    def private(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Inputs and labels of up to MAX_SAMPLES training samples of each client, chosen by the seed."""
        data, chosen = self.split.dataset, {}
        for client, indices in self.split.clients.items():
            some = indices[self._some(len(indices), client)]
            chosen[client] = self._staged(data.train_x[some]), torch.as_tensor(data.train_y[some])
        return chosen

    @cached_property
    def public(self) -> Tensor:
        """Up to MAX_SAMPLES public inputs, chosen by the seed."""
        return self._staged(self.split.public_x[self._public])

    @cached_property
    def public_labels(self) -> Tensor | None:
        """The labels of `public`, if the public set was held out of labelled data. No role of the run sees them."""
        if self.split.public is None:
            return None
        return torch.as_tensor(self.split.dataset.train_y[self.split.public[self._public]])

    @cached_property
    def _public(self) -> Indices:
        return self._some(len(self.split.public_x), "public")

    def _some(self, n: int, owner: str) -> Indices:
        draws = raw_bits(philox_key(self.config.seed, "instruments", owner), 0, n)
        return np.sort(np.argsort(draws, kind="stable")[:MAX_SAMPLES])

    def _staged(self, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
        return torch.as_tensor(x).to(device=self.config.device, dtype=dtype_of(self.config.precision))
