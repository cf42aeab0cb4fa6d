"""A dataset and its partition: who owns which samples, what is public, what is tested on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedal.data.dataset import Dataset
from fedal.data.lacking import Imputed, imputed_columns
from fedal.data.npz import UNREADABLE, refuse_bad_npz
from fedal.data.partition import RarestClass, class_table, effective_classes, rarest_class
from fedal.data.sources import SOURCES
from fedal.durable import write_atomically
from fedal.errors import CheckpointError
from fedal.models import suited_to
from fedal.seeding import Indices


@dataclass(frozen=True)
class Task:
    """What is known of the data on both sides of a deployment: enough to build models and messages."""

    dataset: str
    input_shape: tuple[int, ...]
    n_classes: int

    @property
    def candidates(self) -> tuple[str, ...]:
        """The models that clients draw from: those of the dataset, or such as take this shape."""
        known = SOURCES.get(self.dataset)
        return (known and known.models) or suited_to(self.input_shape)


@dataclass(frozen=True)
class DataSplit:
    """A dataset and its partition: index lists into its training samples, and the public inputs."""

    dataset: Dataset
    clients: dict[str, Indices]
    public: Indices | None  # indices of training samples, or None when public_x came from elsewhere
    public_x: NDArray[np.float32]
    leftovers: int
    validation: Indices | None = None  # training samples that belong to no client
    held_out: Mapping[str, Indices] = field(default_factory=dict)  # a client's own samples that it does not train on

    @property
    def task(self) -> Task:
        return Task(self.dataset.name, self.dataset.sample_shape, self.dataset.n_classes)

    def class_counts(self) -> NDArray[np.int64]:
        """Samples per client and class.  -> (N, K)"""
        return class_table(self.dataset.train_y, list(self.clients.values()), self.dataset.n_classes)

    @property
    def effective_classes(self) -> float:
        """exp(entropy of a client's class shares), mean over clients."""
        return effective_classes(self.class_counts())

    @property
    def rarest_class(self) -> RarestClass:
        return rarest_class(self.class_counts())

    @property
    def own_tests(self) -> dict[str, Indices]:
        """client -> its own test samples, if each client brought its own data."""
        return {name: owned.test for name, owned in (self.dataset.owners or {}).items() if name in self.clients}

    def imputed(self, client: str) -> Imputed | None:
        """The encoded columns that a client does not have, with their values; None if it lacks nothing."""
        owned, schema = (self.dataset.owners or {}).get(client), self.dataset.schema
        return imputed_columns(schema, owned.lacking) if schema and owned and owned.lacking else None

    def save(self, path: Path) -> None:
        arrays: dict[str, NDArray[np.generic]] = {f"client/{name}": part for name, part in self.clients.items()}
        arrays["class_counts"] = self.class_counts()
        arrays["leftovers"] = np.array(self.leftovers)
        arrays["fingerprint"] = np.frombuffer(_fingerprint(self.dataset), np.uint8)
        arrays |= {f"held_out/{name}": part for name, part in self.held_out.items()}
        for name, part in {"public": self.public, "validation": self.validation}.items():
            if part is not None:
                arrays[name] = part
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())


@dataclass(frozen=True)
class SavedSplit:
    """What `DataSplit.save` wrote: index lists for the dataset that it was made for."""

    clients: dict[str, Indices]
    public: Indices | None
    leftovers: int
    validation: Indices | None
    held_out: dict[str, Indices]


def read_split(path: Path, dataset: Dataset) -> SavedSplit:
    """The partition that was saved with a run; refused when the data are not the ones it was made for."""
    with _reading(path), np.load(path, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
        clients, held_out = (
            {name.removeprefix(kind): part for name, part in arrays.items() if name.startswith(kind)}
            for kind in ("client/", "held_out/")
        )
        fingerprint, leftovers = arrays["fingerprint"].tobytes(), int(arrays["leftovers"])
    if fingerprint != _fingerprint(dataset):
        raise CheckpointError(
            f"{path} was made for other training data than {dataset.name} holds now. "
            "Put the original data back, or start a new run."
        )
    return SavedSplit(clients, arrays.get("public"), leftovers, arrays.get("validation"), held_out)


@dataclass(frozen=True)
class SavedCounts:
    """What a saved partition says without the dataset: samples per client and class, and how many no client has."""

    class_counts: NDArray[np.int64]
    leftovers: int


def read_counts(path: Path) -> SavedCounts:
    with _reading(path), np.load(path, allow_pickle=False) as saved:
        return SavedCounts(saved["class_counts"], int(saved["leftovers"]))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        refuse_bad_npz(path)
        yield
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


def _fingerprint(dataset: Dataset) -> bytes:
    """Names the training data: labels and a sample of the inputs."""
    sha = hashlib.sha256(dataset.train_y.tobytes())
    sha.update(repr(dataset.train_x.shape).encode())
    sha.update(np.ascontiguousarray(dataset.train_x[:: max(1, len(dataset.train_x) // 64)]).tobytes())
    return sha.digest()
