"""Stratified subsets: a part of the samples that holds every class in its proportion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal.seeding import Indices, philox_key, raw_bits


def stratified_subset(
    labels: NDArray[np.int64], size: int, seed: int, purpose: str = "evaluation", owner: str = ""
) -> Indices:
    """`size` sorted indices with the class proportions of `labels`, determined by the seed, purpose and owner."""
    draws = raw_bits(philox_key(seed, purpose, owner), 0, len(labels))
    order = np.lexsort((draws, labels))  # by class, shuffled within each
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    share = (rank + 0.5) / counts[labels[order]]  # all samples with a share below s are a fraction s of every class
    chosen: NDArray[Any] = order[np.argsort(share, kind="stable")[:size]]
    return np.sort(chosen).astype(np.int64)
