"""The data of a run, from its config: decided before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal import data as data_sources
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.data.partition import divide, draw_public
from fedal.data.split import DataSplit, read_split
from fedal.errors import CheckpointError, ConfigError, DataError
from fedal.seeding import Indices, partition_generator

MAX_PUBLIC = 1000  # samples of the public set, unless it is told or a fact of the data set


def load_dataset(config: Config) -> Dataset:
    if config.data is not None:
        return data_sources.load_npz(config.data)
    needed = data_sources.describe(config.dataset).users_needed
    return data_sources.load(
        config.dataset,
        folder=config.data_folder,
        accept_unverified=config.accept_unverified,
        max_users=needed and needed(len(config.client_names), config.public_size or MAX_PUBLIC),
    )


def prepare_split(
    config: Config, dataset: Dataset | None = None, public_x: NDArray[np.float32] | None = None
) -> DataSplit:
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
    return DataSplit(dataset, clients, public, public_x, partition.leftovers)


def restore_split(
    config: Config, path: Path, dataset: Dataset | None = None, public_x: NDArray[np.float32] | None = None
) -> DataSplit:
    """The division that was saved with a run; refused when the data are not the ones it was made for."""
    dataset = dataset or load_dataset(config)
    division = read_split(path, dataset)
    absent = [name for name in config.client_names if name not in division.clients]
    if absent:
        raise CheckpointError(f'{path}: cannot be read (there are no samples of client "{absent[0]}").')
    if division.public is not None:
        public_x = dataset.train_x[division.public]
    elif public_x is None and config.public is not None:
        public_x = data_sources.load_public_npz(config.public)
    if public_x is None:
        raise CheckpointError(f"{path}: this run used public inputs given in Python; pass them to resume() again.")
    clients = {name: division.clients[name] for name in config.client_names}
    return DataSplit(dataset, clients, division.public, public_x, division.leftovers)


def public_size(config: Config, dataset: Dataset) -> int:
    if config.public_size is not None:
        return config.public_size
    known = data_sources.SOURCES.get(dataset.name)
    return (known and known.public_size) or min(MAX_PUBLIC, len(dataset.train_y) // 4)


def resolved(config: Config) -> dict[str, Any]:
    """What a run makes of its partition and its length where they are left open."""
    is_open = config.iterations is None and config.rounds is None
    length = {"iterations": config.total_rounds * config.tau} if is_open else {}
    return {"partition": config.partition or default_partition(config), **length}


def default_partition(config: Config) -> str:
    return data_sources.describe(config.dataset).partition if config.data is None else "dirichlet"
