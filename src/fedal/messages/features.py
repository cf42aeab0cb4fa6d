"""Features: of public samples, or means per class."""

from __future__ import annotations

from dataclasses import dataclass

from fedal.lazy import Tensor
from fedal.messages.base import MAX_CLIENTS, Leak, Message, Misfit, Range


@dataclass(frozen=True)
class PublicFeatures(Message):
    """The vectors before the last layer on the public batch: 4 * B * d bytes."""

    values: Tensor

    leak = Leak.PUBLIC_FEATURES
    layout = {"values": ("B", "d")}  # noqa: RUF012


@dataclass(frozen=True)
class FeatureConsensus(Message):
    """The mean features over the `count` clients that responded: 4 * B * d bytes."""

    mean: Tensor
    count: int

    leak = Leak.PUBLIC_FEATURES
    layout = {"mean": ("B", "d")}  # noqa: RUF012
    ranges = {"count": Range(1, MAX_CLIENTS)}  # noqa: RUF012


@dataclass(frozen=True)
class ClassFeatures(Message):
    """Mean features of the K_n classes that a client has seen, in class order, and the sample count of every class:
    4 * K_n * d + 4 * K bytes."""

    rows: Tensor
    counts: Tensor

    leak = Leak.CLASS_FEATURES | Leak.LABEL_COUNTS
    layout = {"rows": ("*", "d"), "counts": ("K",)}  # noqa: RUF012
    integer_fields = {"counts": "int32"}  # noqa: RUF012
    ranges = {"counts": Range(0, 2**31 - 1)}  # noqa: RUF012
    about_batch = False
    size = "4·K_n·d + 4·K B"

    def misfit(self) -> Misfit | None:
        seen = int((self.counts > 0).sum())
        return None if seen == len(self.rows) else Misfit("rows", f"has {len(self.rows)} rows for {seen} classes")


@dataclass(frozen=True)
class Prototypes(Message):
    """The mean features of every class over the clients; zeros for a class that no client has: 4 * K * d bytes."""

    rows: Tensor

    leak = Leak.CLASS_FEATURES
    layout = {"rows": ("K", "d")}  # noqa: RUF012
    about_batch = False
