"""A view of the whole federation for measurements: all learners and data, staged once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.data.lacking import Imputed
from fedal.data.sources import SOURCES
from fedal.data.split import DataSplit
from fedal.data.strata import stratified_subset
from fedal.data.streams import Samples
from fedal.discriminator import Discriminator
from fedal.engine.loop import Federation, Workers
from fedal.engine.player import LocalPlayer
from fedal.errors import FedalError
from fedal.learners.base import Learner
from fedal.methods.client import ClientLogic
from fedal.metrics import Predictions, chosen, evaluate, outputs
from fedal.precision import dtype_of
from fedal.seeding import Indices, in_drawn_order, philox_key, raw_bits

Columns = dict[str, dict[str, float]]
"""client -> column -> measured value. Columns that belong to no client are under SERVER."""

SERVER = ""

MAX_SAMPLES = 1024  # of each client's data and of the public set


@dataclass(frozen=True)
class EvaluationSet:
    """Labelled samples that no client trains on. Rows during training use `some` of them, final rows all."""

    name: str  # begins the names of its columns
    samples: Samples
    labels: Tensor
    some: Tensor
    metrics: tuple[str, ...] = ("accuracy",)
    positive: int | None = None

    @classmethod
    def of(
        cls, name: str, x: NDArray[np.float32], y: NDArray[np.int64], config: Config, metrics: tuple[str, ...],
        positive: int | None,
    ) -> EvaluationSet:  # fmt: skip
        """Stages the samples; `some` is a stratified part, fixed by the seed."""
        some = stratified_subset(y, config.eval_samples, config.seed)
        labels, part = (torch.as_tensor(values, device=config.device) for values in (y, some))
        return cls(name, Samples(x, dtype_of(config.precision), config.device), labels, part, metrics, positive)

    def seen_with(self, imputed: Imputed | None) -> EvaluationSet:
        """The same samples as a client sees them that lacks columns."""
        return self if imputed is None else replace(self, samples=self.samples.with_imputed(imputed))

    def used(self, *, whole: bool) -> Tensor:
        return torch.arange(len(self.labels), device=self.labels.device) if whole else self.some

    def evaluate(self, learner: Learner, *, whole: bool) -> dict[str, float]:
        """The columns of a model, such as `test_accuracy`."""
        used = self.used(whole=whole)
        return evaluate(learner, self.samples, self.labels, used, self.name, self.metrics, self.positive)

    def predictions(self, learner: Learner) -> Predictions:
        """What a model predicts for all samples."""
        logits = outputs(learner, self.samples, self.used(whole=True), self.name)
        return Predictions.of(logits, self.labels, self.positive)


def recorded_metrics(config: Config, data: Dataset) -> tuple[str, ...]:
    """The metrics that a run on these data records, the headline first."""
    benchmark = config.data is None and not config.data_in_python and data.name in SOURCES
    return chosen(config.metrics, data.train_y, benchmark=benchmark)


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
        data = split.dataset
        self.metrics = recorded_metrics(config, data)
        self.tests = EvaluationSet.of("test", data.test_x, data.test_y, config, self.metrics, data.positive)
        self.validation = None if split.validation is None else self._kept_back("validation", split.validation)
        self._held_out = {client: self._kept_back("own_validation", part) for client, part in split.held_out.items()}
        self._own_tests = {client: self._own_test(part) for client, part in split.own_tests.items()}

    @property
    def discriminator(self) -> Discriminator | None:
        return getattr(self.federation.server, "discriminator", None)

    @property
    def clients(self) -> list[str]:
        return list(self.learners)

    @cached_property
    def evaluated(self) -> tuple[str, ...]:
        """The clients that are evaluated: all, or a sample that is the same during the whole run."""
        count = self.config.evaluated_clients
        if count == len(self.clients):
            return tuple(self.clients)
        drawn = {*in_drawn_order(self.config.client_names, philox_key(self.config.seed, "evaluated"))[:count]}
        return tuple(name for name in self.clients if name in drawn)

    def logic(self, client: str) -> ClientLogic:
        """A client's half of the method, if the client is in this process and not in a stack."""
        players = {player.names: player for player in self.federation.players if isinstance(player, LocalPlayer)}
        return players[client,].logic

    def evaluate_all(self, *, whole: bool = False) -> Columns:
        """All measurements of the clients that are evaluated."""
        found = self.workers.map(lambda client: self.evaluate(client, whole=whole), self.evaluated)
        return dict(zip(self.evaluated, found, strict=True))

    def evaluate(self, client: str, *, whole: bool = False) -> dict[str, float]:
        """All measurements of a client's model on test data and, if there are any, on validation data."""
        return {n: value for each in self.sets(client) for n, value in self._on(each, client, whole=whole).items()}

    def sets(self, client: str) -> list[EvaluationSet]:
        """The data on which a client's model is evaluated."""
        own = [sets[client] for sets in (self._held_out, self._own_tests) if client in sets]
        return [each.seen_with(self.split.imputed(client)) for each in (*self.common_sets, *own)]

    def test_accuracy(self, client: str) -> float:
        """The accuracy of a client's model on the test samples that are used during training."""
        return self._on(self.sets(client)[0], client)["test_accuracy"]

    @property
    def common_sets(self) -> list[EvaluationSet]:
        """The data on which all clients are evaluated."""
        return [self.tests, *([self.validation] if self.validation is not None else [])]

    def _on(self, data: EvaluationSet, client: str, *, whole: bool = False) -> dict[str, float]:
        try:
            return data.evaluate(self.learners[client], whole=whole)
        except FedalError as error:
            raise type(error)(f'client "{client}": {error}') from None

    def _own_test(self, indices: Indices) -> EvaluationSet:
        """The test samples that a client brought."""
        data = self.split.dataset
        x, y = data.test_x[indices], data.test_y[indices]
        return EvaluationSet.of("own_test", x, y, self.config, self.metrics, data.positive)

    def _kept_back(self, name: str, indices: Indices) -> EvaluationSet:
        """Training samples that the split keeps back from training."""
        data = self.split.dataset
        x, y = data.train_x[indices], data.train_y[indices]
        return EvaluationSet.of(name, x, y, self.config, self.metrics, data.positive)

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

    def _staged(self, x: NDArray[np.float32]) -> Tensor:
        return torch.as_tensor(x).to(device=self.config.device, dtype=dtype_of(self.config.precision))
