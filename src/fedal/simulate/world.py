"""The data of a run: who owns which samples, what is public, what is tested on. Decided before anything is written."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedal import data as data_sources
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.data.partition import class_table, divide, draw_public
from fedal.durable import write_atomically
from fedal.errors import CheckpointError, ConfigError, DataError
from fedal.models import suited_to
from fedal.seeding import Indices, partition_generator

MOST_PUBLIC = 1000  # samples of the public set, unless it is told or a fact of the data set


@dataclass(frozen=True)
class Task:
    """What is known of the data on both sides of a deployment: enough to build models and messages."""

    dataset: str
    input_shape: tuple[int, ...]
    n_classes: int

    @property
    def candidates(self) -> tuple[str, ...]:
        """The models that clients draw from: those of the data set, or such as take this shape."""
        known = data_sources.SOURCES.get(self.dataset)
        return (known and known.models) or suited_to(self.input_shape)


@dataclass(frozen=True)
class World:
    """A data set divided: index lists into its training samples, and the public inputs."""

    dataset: Dataset
    clients: dict[str, Indices]
    public: Indices | None  # indices of training samples, or None when public_x came from elsewhere
    public_x: NDArray[np.float32]
    leftovers: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.dataset.sample_shape

    @property
    def task(self) -> Task:
        return Task(self.dataset.name, self.input_shape, self.dataset.n_classes)

    def class_counts(self) -> NDArray[np.int64]:
        """Samples per client and class.  -> (N, K)"""
        return class_table(self.dataset.train_y, list(self.clients.values()), self.dataset.n_classes)

    def save(self, path: Path) -> None:
        arrays: dict[str, NDArray[np.generic]] = {f"client/{name}": part for name, part in self.clients.items()}
        arrays["class_counts"] = self.class_counts()
        arrays["leftovers"] = np.array(self.leftovers)
        arrays["fingerprint"] = np.frombuffer(_fingerprint(self.dataset), np.uint8)
        if self.public is not None:
            arrays["public"] = self.public
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())


def load_dataset(config: Config) -> Dataset:
    if config.data is not None:
        return data_sources.load_npz(config.data)
    needed = data_sources.describe(config.dataset).users_needed
    return data_sources.load(
        config.dataset,
        folder=config.data_folder,
        accept_unverified=config.accept_unverified,
        max_users=needed and needed(len(config.client_names), config.public_size or MOST_PUBLIC),
    )


def prepare_world(config: Config, dataset: Dataset | None = None, public_x: NDArray[np.float32] | None = None) -> World:
    """Draws the public set first, then divides the rest; everything that does not fit is a clear error."""
    dataset = dataset or load_dataset(config)
    if public_x is None and config.public is not None:
        public_x = data_sources.load_public_npz(config.public)
    n_train = len(dataset.train_y)
    public: Indices | None = None
    rest: Indices = np.arange(n_train)
    if public_x is None:
        size = public_size(config, dataset)
        if size >= n_train:
            raise ConfigError(
                f"public_size = {size}: {dataset.name} has {n_train} training samples, and the clients need some too. "
                "Try a smaller public_size."
            )
        public = draw_public(n_train, size, partition_generator(config.seed, "public"))
        rest = np.setdiff1d(rest, public, assume_unique=True)
        public_x = dataset.train_x[public]
    if public_x.shape[1:] != dataset.train_x.shape[1:]:
        raise DataError(
            f"public samples have shape {public_x.shape[1:]}, private ones {dataset.train_x.shape[1:]}. "
            "Both go through the same models and must have the same shape."
        )
    if len(public_x) < config.batch_size:
        raise ConfigError(
            f"the public set has {len(public_x)} samples, fewer than batch_size = {config.batch_size}. "
            "Try a larger public_size or a smaller batch_size."
        )
    partition = divide(
        config.partition or default_partition(config),
        dataset.train_y[rest],
        len(config.client_names),
        config.alpha,
        partition_generator(config.seed, "partition"),
        users=None if dataset.users is None else dataset.users[rest],
        allow_overlap=config.allow_overlap,
        min_samples=config.min_samples,
        client_names=config.client_names,
    )
    clients = {name: rest[part] for name, part in zip(config.client_names, partition.clients, strict=True)}
    return World(dataset, clients, public, public_x, partition.leftovers)


def restore_world(
    config: Config, path: Path, dataset: Dataset | None = None, public_x: NDArray[np.float32] | None = None
) -> World:
    """The division that was saved with a run; refused when the data are not the ones it was made for."""
    dataset = dataset or load_dataset(config)
    try:
        with np.load(path, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        clients = {name: arrays[f"client/{name}"] for name in config.client_names}
        fingerprint, leftovers = arrays["fingerprint"].tobytes(), int(arrays["leftovers"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None
    if fingerprint != _fingerprint(dataset):
        raise CheckpointError(
            f"{path} was made for other training data than {dataset.name} holds now. "
            "Put the original data back, or start a new run."
        )
    public = arrays.get("public")
    if public is not None:
        public_x = dataset.train_x[public]
    elif public_x is None and config.public is not None:
        public_x = data_sources.load_public_npz(config.public)
    if public_x is None:
        raise CheckpointError(f"{path}: this run used public inputs given in Python; pass them to resume() again.")
    return World(dataset, clients, public, public_x, leftovers)


def public_size(config: Config, dataset: Dataset) -> int:
    if config.public_size is not None:
        return config.public_size
    known = data_sources.SOURCES.get(dataset.name)
    return (known and known.public_size) or min(MOST_PUBLIC, len(dataset.train_y) // 4)


def default_partition(config: Config) -> str:
    return data_sources.describe(config.dataset).partition if config.data is None else "dirichlet"


def _fingerprint(dataset: Dataset) -> bytes:
    """Names the training data: labels and a sample of the inputs."""
    sha = hashlib.sha256(dataset.train_y.tobytes())
    sha.update(repr(dataset.train_x.shape).encode())
    sha.update(np.ascontiguousarray(dataset.train_x[:: max(1, len(dataset.train_x) // 64)]).tobytes())
    return sha.digest()
