"""Prepares the data of a run from its config, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedal import data as data_sources
from fedal.config import Config
from fedal.config.client_data import client_data
from fedal.data.dataset import Dataset
from fedal.data.lacking import without_lacking
from fedal.data.owners import join_owners
from fedal.data.partition import BY_OWNER, divide, draw_public
from fedal.data.reading import Readable, read_data, read_public
from fedal.data.schema import Schema, load_schema
from fedal.data.split import DataSplit, read_split
from fedal.data.strata import stratified_subset
from fedal.errors import CheckpointError, ConfigError, DataError, TooFewSamplesError
from fedal.seeding import Indices, partition_generator

GivenData: TypeAlias = Dataset | Mapping[str, Dataset | Readable] | Readable | None
"""What `fedal.run` takes as `data`: a dataset, file or DataFrame, or one for each client by name."""

GivenPublic: TypeAlias = NDArray[np.float32] | Readable | None

MAX_PUBLIC = 1000  # samples of the public set, unless the config or the dataset sets another size


def load_dataset(config: Config) -> Dataset:
    schema = load_config_schema(config)
    if client_data(config.clients):
        parts = {str(table.name): read_data(table.data, schema) for table in config.client_tables}
        return join_owners(parts)
    if config.data is not None:
        return read_data(config.data, schema)
    if config.data_in_python:
        raise ConfigError(
            f'data_in_python = true: dataset "{config.dataset}" was passed in Python. Pass it again: data=...'
        )
    needed = data_sources.describe(config.dataset).users_needed
    return data_sources.load(
        config.dataset,
        folder=config.data_folder,
        accept_unverified=config.accept_unverified,
        max_users=needed and needed(len(config.client_names), config.public_size or MAX_PUBLIC),
    )


def load_config_schema(config: Config) -> Schema | None:
    """The schema that the config names, if it names one."""
    return None if config.schema_file is None else load_schema(config.schema_file)


def given_data(config: Config, data: GivenData) -> Dataset | None:
    """The data passed in Python as one dataset: one object, or one for each client by name."""
    if data is None or isinstance(data, Dataset):
        return data
    schema = load_config_schema(config)
    if not isinstance(data, Mapping):
        return read_data(data, schema)
    if set(data) != set(config.client_names):
        name = sorted(set(data) ^ set(config.client_names))[0]
        raise ConfigError(
            f"data: there are data of clients {', '.join(map(str, data))}; the clients of the config are "
            f'{", ".join(config.client_names)}, so "{name}" is without its counterpart.'
        )
    parts = {name: data[name] for name in config.client_names}
    return join_owners({n: part if isinstance(part, Dataset) else read_data(part, schema) for n, part in parts.items()})


def given_public(config: Config, public: GivenPublic, data: Dataset | None) -> NDArray[np.float32] | None:
    """The public inputs passed in Python, as an array; `data` are those passed with them."""
    return public if public is None or isinstance(public, np.ndarray) else read_public(public, _schema_of(config, data))


def _schema_of(config: Config, data: Dataset | None) -> Schema | None:
    """The schema of the federation: the one that the config names, else the one that the data were read with."""
    return load_config_schema(config) or (None if data is None else data.schema)


def prepare_split(
    config: Config, dataset: Dataset | None = None, public_x: NDArray[np.float32] | None = None
) -> DataSplit:
    """Draws the public set first, then the validation set, and partitions the rest among the clients."""
    dataset = dataset or load_dataset(config)
    if public_x is None and config.public is not None:
        public_x = read_public(config.public, _schema_of(config, dataset))
    if public_x is not None:
        public_x = without_lacking(public_x, dataset)
    if dataset.owners is not None and public_x is None:
        raise ConfigError(
            "public: the clients have their own data, so the public set must come from elsewhere. Name a file: "
            "--public FILE, or pass public=... in Python."
        )
    n_train = len(dataset.train_y)
    public: Indices | None = None
    rest: Indices = np.arange(n_train)
    if public_x is None:
        size = public_size(config, dataset)
        if size >= n_train:
            raise ConfigError(
                f"public_size = {size}: {dataset.name} has {n_train} training samples; none are left for the clients. "
                "Try a smaller public_size."
            )
        public = draw_public(n_train, size, partition_generator(config.seed, "public"))
        rest = np.setdiff1d(rest, public, assume_unique=True)
        public_x = dataset.train_x[public]
    if public_x.shape[1:] != dataset.train_x.shape[1:]:
        raise DataError(
            f"public samples have shape {public_x.shape[1:]}, private samples {dataset.train_x.shape[1:]}. "
            "They are inputs of the same models and must have the same shape."
        )
    if len(public_x) < config.batch_size:
        raise ConfigError(
            f"the public set has {len(public_x)} samples, fewer than batch_size = {config.batch_size}. "
            "Try a larger public_size or a smaller batch_size."
        )
    validation: Indices | None = None
    if config.validation:
        validation = rest[held_out_share(config, "validation", dataset.train_y[rest])]
        rest = np.setdiff1d(rest, validation, assume_unique=True)
    clients, leftovers = _owned(config, dataset) if dataset.owners is not None else _divided(config, dataset, rest)
    held_out: dict[str, Indices] = {}
    if config.own_validation:
        held_out = {
            n: own[held_out_share(config, "own_validation", dataset.train_y[own], n)] for n, own in clients.items()
        }
        clients = {n: np.setdiff1d(own, held_out[n], assume_unique=True) for n, own in clients.items()}
    return DataSplit(dataset, clients, public, public_x, leftovers, validation, held_out)


def _divided(config: Config, dataset: Dataset, rest: Indices) -> tuple[dict[str, Indices], int]:
    """client -> its samples among the `rest`, and how many no client has."""
    partition = divide(
        config.partition or default_partition(config),
        dataset.train_y[rest],
        len(config.client_names),
        config.alpha,
        partition_generator(config.seed, "partition"),
        users=None if dataset.users is None else dataset.users[rest],
        min_samples=config.min_samples,
        client_names=config.client_names,
    )
    clients = {name: rest[part] for name, part in zip(config.client_names, partition.clients, strict=True)}
    return clients, partition.leftovers


def _owned(config: Config, dataset: Dataset) -> tuple[dict[str, Indices], int]:
    """client -> the samples that it brought; none are left over."""
    assert dataset.owners is not None
    if config.partition not in (None, BY_OWNER) or config.validation:
        raise ConfigError(
            f"partition = {config.partition}, validation = {config.validation:g}: each client has its own data, which "
            "is not divided. Remove these settings."
        )
    clients = {name: dataset.owners[name].train for name in config.client_names}
    name, fewest = min(((name, len(part)) for name, part in clients.items()), key=lambda each: each[1])
    if fewest < config.min_samples:
        found = f'client "{name}" has {fewest} samples to train on, fewer than min_samples = {config.min_samples}'
        raise TooFewSamplesError(found, ["more data", f"--set min_samples={fewest}"], fewest)
    if config.instruments and any(owned.lacking for owned in dataset.owners.values()):
        raise ConfigError("instruments: not available where clients lack columns, and so see different public inputs.")
    return clients, 0


def held_out_share(config: Config, setting: str, labels: NDArray[np.int64], client: str = "") -> Indices:
    """A stratified share of these samples, for validation; which they are depends on nothing but the seed."""
    share, n = getattr(config, setting), len(labels)
    size = round(share * n)
    if not 0 < size < n:
        whose = f'of the {n} samples of client "{client}"' if client else f"of {n} training samples"
        raise ConfigError(
            f"{setting} = {share:g}: {whose}, {size} would be held out; expected at least 1, and 1 to train on. "
            "Try another share, or 0."
        )
    return stratified_subset(labels, size, config.seed, setting, client)


def restore_split(
    config: Config, path: Path, dataset: Dataset | None = None, public_x: NDArray[np.float32] | None = None
) -> DataSplit:
    """The split saved with a run; raises when the data differ from the data it was made for."""
    dataset = dataset or load_dataset(config)
    saved = read_split(path, dataset)
    absent = [name for name in config.client_names if name not in saved.clients]
    if absent:
        raise CheckpointError(f'{path}: cannot be read (it has no samples of client "{absent[0]}").')
    if saved.public is not None:
        public_x = dataset.train_x[saved.public]
    elif public_x is None and config.public is not None:
        public_x = read_public(config.public, _schema_of(config, dataset))
    if public_x is None:
        raise CheckpointError(f"{path}: this run used public inputs passed in Python; pass them to resume() again.")
    public_x = without_lacking(public_x, dataset)
    clients = {name: saved.clients[name] for name in config.client_names}
    held_out = {name: saved.held_out[name] for name in clients if name in saved.held_out}
    return DataSplit(dataset, clients, saved.public, public_x, saved.leftovers, saved.validation, held_out)


def public_size(config: Config, dataset: Dataset) -> int:
    if config.public_size is not None:
        return config.public_size
    known = data_sources.SOURCES.get(dataset.name)
    return (known and known.public_size) or min(MAX_PUBLIC, len(dataset.train_y) // 4)


def resolved(config: Config, data: Dataset | None = None) -> dict[str, Any]:
    """The partition and the length of a run, with defaults filled in; `data` are those passed in Python."""
    is_open = config.iterations is None and config.rounds is None
    length = {"iterations": config.total_rounds * config.tau} if is_open else {}
    return {"partition": config.partition or default_partition(config, data), **length}


def default_partition(config: Config, data: Dataset | None = None) -> str:
    if client_data(config.clients) or (data is not None and data.owners is not None):
        return BY_OWNER
    return (
        data_sources.describe(config.dataset).partition
        if config.dataset in data_sources.SOURCES and config.data is None
        else "dirichlet"
    )
