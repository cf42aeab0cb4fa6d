"""One seed -> named counters. Randomness is a function of (seed, purpose, owner, step); there is no generator state.

Only raw bits of Philox are used (library permutations may change between versions), so a stream can be recomputed at
any step, in any process, after any crash, and adding a client does not change the numbers of the others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from fedal.lazy import torch

Indices = NDArray[np.int64]

_EMPTY = (0, 0, 0, 0)  # Philox's buffer, with nothing left in it
_of_thread = threading.local()


def philox_key(seed: int, purpose: str, owner: str = "") -> int:
    """The 128-bit key of one stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{purpose}\0{owner}".encode()).digest()[:16], "big")


def raw_bits(key: int, step: int, n: int) -> NDArray[np.uint64]:
    """n raw 64-bit draws of stream `key` at counter `step`; different steps never overlap."""
    philox = getattr(
        _of_thread, "philox", None
    )  # to set one takes a fifth of the time to make one, which asks for entropy
    if philox is None:
        philox = _of_thread.philox = np.random.Philox(key=0)
    philox.state = {
        "bit_generator": "Philox",
        "state": {"key": _words(key, 2), "counter": _words(step << 128, 4)},
        "buffer": _EMPTY,
        "buffer_pos": len(_EMPTY),
        "has_uint32": 0,
        "uinteger": 0,
    }
    drawn: NDArray[np.uint64] = philox.random_raw(n)
    return drawn


def _words(number: int, count: int) -> list[int]:
    """A number as 64-bit words, the lowest first."""
    return [number >> 64 * place & 2**64 - 1 for place in range(count)]


def uniforms(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers strictly between 0 and 1, one for each raw draw."""
    return np.asarray(((bits >> np.uint64(11)) + 0.5) * 2.0**-53, np.float64)


def normals(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers, one for every two raw draws (Box and Muller)."""
    first, second = uniforms(bits).reshape(2, -1)
    drawn: NDArray[np.float64] = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    return drawn


def in_drawn_order(names: Sequence[str], key: int, step: int = 0) -> list[str]:
    """The names by their draws of stream `key` at `step`. Names added at the end do not change the others' order."""
    order = np.argsort(raw_bits(key, step, len(names)), kind="stable")
    return [names[index] for index in order.tolist()]


def partition_generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator for partitions. Only they use library distributions, and their result is saved with the run."""
    return np.random.Generator(np.random.Philox(key=philox_key(seed, purpose)))


@contextmanager
def torch_seeded(seed: int, purpose: str, owner: str = "") -> Iterator[None]:
    """Seeds torch's CPU generator with this stream inside the block; weights for any device are drawn from it."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the generators of all other devices, and format the stack for them
        torch.default_generator.manual_seed(philox_key(seed, purpose, owner) >> 65)
        yield


class BatchStream:
    """The samples in the batch of each global step, drawn without replacement within an epoch of n // B batches.

    With fewer than B samples, an epoch is one batch in which samples repeat as evenly as possible.
    """

    def __init__(self, n_samples: int, batch_size: int, seed: int, purpose: str, owner: str = "") -> None:
        self.n_samples, self.batch_size = n_samples, batch_size
        self._key = philox_key(seed, purpose, owner)
        self._pool = np.resize(np.arange(n_samples, dtype=np.int64), max(n_samples, batch_size))
        self._epoch, self._batches, self._names = -1, self._pool[None], [""]

    def derived(self, name: str, n_samples: int) -> BatchStream:
        """Batches of other samples, as a function of this stream and a name."""
        return BatchStream(n_samples, self.batch_size, self._key, name)

    def order(self, name: str) -> Indices:
        """A random order of all samples, as a function of this stream and a name.  -> (n,)"""
        return np.argsort(raw_bits(philox_key(self._key, name), 0, self.n_samples), kind="stable")

    def indices(self, step: int) -> Indices:
        """The batch of global step `step`, independent of earlier calls.  -> (B,)"""
        position = self._position(step)
        batch: Indices = self._batches[position]
        return batch

    def following(self, step: int, count: int) -> Indices:
        """The batches of `count` steps from `step` on.  -> (count, B)"""
        parts: list[Indices] = []
        while count > 0:  # an epoch at a time
            position = self._position(step)
            parts.append(self._batches[position : position + count])
            step, count = step + len(parts[-1]), count - len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def name(self, step: int) -> str:
        """The digest of that batch. Digests are computed for a whole epoch at once, which is ten times as fast."""
        position = self._position(step)
        if not self._names:
            self._names = [digest(batch) for batch in self._batches]
        return self._names[position]

    def _position(self, step: int) -> int:
        """The step's index within its epoch. Caches the current epoch's order, which is not state."""
        length = len(self._pool) // self.batch_size
        epoch, position = divmod(step, length)
        if epoch != self._epoch:
            order = self._pool[np.argsort(raw_bits(self._key, epoch, len(self._pool)), kind="stable")]
            self._batches = order[: length * self.batch_size].reshape(length, self.batch_size)
            self._epoch, self._names = epoch, []
        return position


def digest(indices: Indices) -> str:
    """A short name for a batch: two batches share it only if they have the same indices in the same order."""
    return hashlib.sha256(np.ascontiguousarray(indices, "<i8").data).hexdigest()[:16]
