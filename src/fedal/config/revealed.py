"""What the parties of a run learn of each other: by the messages of its method, or by a partition that pools data."""

from __future__ import annotations

from fedal.data.partition import POOLED
from fedal.messages import NOT_BLACK_BOX, Leak, in_words

EVERYTHING = "everything"


def revealed(leak: Leak, partition: str | None) -> str:
    """The leak in words; everything, where all clients own all samples."""
    return EVERYTHING if partition == POOLED else in_words(leak)


def is_black_box(leak: Leak, partition: str | None) -> bool:
    return partition != POOLED and not leak & NOT_BLACK_BOX


def refusal(partition: str | None, doer: str) -> str:
    """Why `doer`, which is not a simulation, refuses the partition; empty if it does not."""
    if partition != POOLED:
        return ""
    return (
        f"partition = {POOLED}: it gives every client the private samples of all, which only a simulation may do. "
        f"{doer} refuses it. Use another partition, see docs/partitions.md."
    )
