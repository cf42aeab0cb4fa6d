"""One seed -> named counters. Randomness is a function of (seed, purpose, owner, step); there is no generator state.

Only raw bits of Philox are used (library permutations may change between versions), so a stream can be recomputed at
any step, in any process, after any crash, and adding a client does not change the numbers of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from fedal.lazy import torch

Indices = NDArray[np.int64]


def philox_key(seed: int, purpose: str, owner: str = "") -> int:
    """The 128-bit key of one stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{purpose}\0{owner}".encode()).digest()[:16], "big")


def raw_bits(key: int, step: int, n: int) -> NDArray[np.uint64]:
    """n raw 64-bit draws of stream `key` at counter `step`; different steps never overlap."""
    return np.random.Philox(key=key, counter=step << 128).random_raw(n)


def partition_generator(seed: int, purpose: str) -> np.random.Generator:
    """The one place where library distributions are used; its result is saved with the run."""
    return np.random.Generator(np.random.Philox(key=philox_key(seed, purpose)))


@contextmanager
def torch_seeded(seed: int, purpose: str, owner: str = "") -> Iterator[None]:
    """Torch's global generator, which weight initialisers use, holds this stream inside the block only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(philox_key(seed, purpose, owner) >> 65)
        yield


class BatchStream:
    """Which samples form the batch of each global step: without replacement inside an epoch of n // B batches.

    With fewer than B samples an epoch is one batch in which samples repeat as evenly as possible.
    """

    def __init__(self, n_samples: int, batch_size: int, seed: int, purpose: str, owner: str = "") -> None:
        self.n_samples, self.batch_size = n_samples, batch_size
        self._key = philox_key(seed, purpose, owner)
        self._pool = np.resize(np.arange(n_samples, dtype=np.int64), max(n_samples, batch_size))
        self._epoch, self._order = -1, self._pool

    def indices(self, step: int) -> Indices:
        """The batch of global step `step`, the same whatever was asked before.  (B,)"""
        epoch, position = divmod(step, len(self._pool) // self.batch_size)
        if epoch != self._epoch:  # a cache, not state: the order is a function of the epoch
            draws = raw_bits(self._key, epoch, len(self._pool))
            self._epoch, self._order = epoch, self._pool[np.argsort(draws, kind="stable")]
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]


def digest(indices: Indices) -> str:
    """A short name of a batch: equal exactly when the indices and their order are."""
    return hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()[:16]
