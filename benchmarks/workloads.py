"""The benchmark's workloads: one FedAL federation, built twice from the same weights and batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from benchmarks.naive import NaiveFedAL
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.data.split import DataSplit
from fedal.engine.threads import thread_workers
from fedal.methods.outputs.fedal import FedALServer
from fedal.precision import dtype_of
from fedal.seeding import BatchStream
from fedal.simulate.assemble import Assembly, assemble

PUBLIC, PER_CLIENT = 1000, 200  # samples


@dataclass(frozen=True)
class Workload:
    """Clients, their models and the shape of their data.

    Each repeat times `rounds` rounds, some seconds: a single round after a pause is slower than a round within a run.
    """

    name: str
    dataset: str
    input_shape: tuple[int, ...]
    models: tuple[str, ...]
    clients: int
    rounds: int
    tau: int = 5

    @property
    def is_small(self) -> bool:
        """Whether stacks pay: its networks are chains of layers, bound by operator calls."""
        return {*self.models} <= {"mlp-small", "cnn-small", "lenet5"}

    def config(self, **settings: Any) -> Config:
        tables = tuple({"model": self.models[i % len(self.models)]} for i in range(self.clients))
        return Config(dataset=self.dataset, clients=tables, tau=self.tau, **settings)

    def split(self, per_client: int = PER_CLIENT) -> DataSplit:
        """Random images, which cost as much as real ones."""
        generator = np.random.Generator(np.random.Philox(key=1))
        n = PUBLIC + per_client * self.clients
        x = generator.standard_normal((n, *self.input_shape), dtype=np.float32)
        y = generator.integers(0, 10, n)
        data = Dataset(self.dataset, x, y, x[:64], y[:64], 10)
        names = self.config().client_names
        parts = np.split(np.arange(PUBLIC, n), self.clients)
        return DataSplit(data, dict(zip(names, parts, strict=True)), np.arange(PUBLIC), x[:PUBLIC], 0)


SMALL = (  # bound by operator calls
    Workload("mlp-small x10", "digits", (1, 8, 8), ("mlp-small",), 10, rounds=20),
    Workload("tabular MLP x20", "digits", (30,), ("mlp-small",), 20, rounds=10),
    Workload("cnn-small x25", "digits", (1, 8, 8), ("cnn-small",), 25, rounds=4),
)
LENET = Workload("LeNet5 x10", "mnist", (1, 28, 28), ("lenet5",), 10, rounds=4)
LARGE = (  # bound by arithmetic
    Workload("WideResNet mix x20", "svhn", (3, 32, 32), ("wrn-10-1", "wrn-10-2", "wrn-16-1"), 20, rounds=1, tau=2),
    Workload("ResNet-18/34 x15", "cifar10", (3, 32, 32), ("resnet18", "resnet34"), 15, rounds=1, tau=1),
)
WORKLOADS = (*SMALL, LENET, *LARGE)


class Both:
    """Both implementations of one workload, ready to run rounds."""

    def __init__(self, workload: Workload, assembly: Assembly, config: Config, split: DataSplit, rounds: int) -> None:
        self.workload, self.assembly, self._t = workload, assembly, 0
        server = assembly.federation.server
        assert isinstance(server, FedALServer)
        dtype = dtype_of(config.precision)
        data = split.dataset
        x, y = torch.as_tensor(data.train_x).to(dtype), torch.as_tensor(data.train_y)
        steps = range(rounds * workload.tau)
        public = BatchStream(PUBLIC, config.batch_size, config.seed, "public")
        streams = {
            name: BatchStream(len(part), config.batch_size, config.seed, "private", name)
            for name, part in split.clients.items()
        }
        self.naive = NaiveFedAL(
            [learner.module for learner in assembly.learners.values()],  # type: ignore[attr-defined]
            server.discriminator._learner.module,
            [TensorDataset(x[part], y[part]) for part in split.clients.values()],
            [[stream.indices(step).tolist() for step in steps] for stream in streams.values()],
            x[:PUBLIC],
            [public.indices(step).tolist() for step in steps],
            workload.tau,
        )

    def run_engine(self) -> None:
        self.assembly.federation.run_round(self._t)
        self._t += 1

    def run_naive(self) -> None:
        self.naive.round()

    def difference(self) -> float:
        """The largest difference between corresponding weights of the two implementations."""
        return max(
            float((mine - theirs).detach().abs().max())
            for learner, model in zip(self.assembly.learners.values(), self.naive.models, strict=True)
            for mine, theirs in zip(learner.module.parameters(), model.parameters(), strict=True)  # type: ignore[attr-defined]
        )


@contextmanager
def federation(
    workload: Workload, workers: int = 0, per_client: int = PER_CLIENT, **settings: Any
) -> Iterator[Assembly]:
    """The engine alone, assembled as in a run."""
    with thread_workers(workers) as pool:
        yield assemble(workload.config(**settings), workload.split(per_client), pool)


@contextmanager
def prepare_both(workload: Workload, rounds: int, **settings: Any) -> Iterator[Both]:
    """The engine and the naive loop, with batches for `rounds` rounds."""
    with federation(workload, **settings) as assembly:
        yield Both(workload, assembly, workload.config(**settings), workload.split(), rounds)
