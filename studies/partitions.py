"""Do client-wise partitions have the class shares that they promise? The tables of docs/partitions.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedal.data.partition import class_table, divide, effective_classes
from fedal.records.tables import as_markdown
from fedal.seeding import partition_generator
from studies.results_page import write_between
from studies.results_plan import ROOT

PAGE = ROOT / "docs" / "partitions.md"
BEGIN, END = "<!-- moments: written by python -m studies partitions -->", "<!-- end of moments -->"
FAMILIES = {"dirichlet-client": "alpha per class", "dirichlet-client-k": "alpha / K per class"}
READINGS = ("", "-overlap", "-balanced")
ALPHAS, CLIENTS = (0.1, 1.0, 5.0), (5, 10, 20)
CLASSES, PER_CLASS = 10, 1000
SEEDS = 200
OWN_DRAWS = 200_000  # for the effective classes of a Dirichlet vector, which have no closed form
HEADS = ["alpha", "N", "partition", "mean share (of each class)", "variance", "effective classes", "unassigned"]


@dataclass(frozen=True)
class Moments:
    """Of the class shares of all clients over all seeds."""

    lowest_mean: float  # of the ten classes
    highest_mean: float
    variance: float
    effective: float
    unassigned: float | None = None  # share of the samples

    def cells(self) -> list[str]:
        low, high = f"{self.lowest_mean:.3f}", f"{self.highest_mean:.3f}"
        mean = low if low == high else f"{low} to {high}"
        rest = "" if self.unassigned is None else f"{self.unassigned:.0%}"
        return [mean, f"{self.variance:.4f}", f"{self.effective:.2f}", rest]


def moments(name: str, alpha: float, n_clients: int) -> Moments:
    """What the partition of that name gives at seeds 0 to 199, as a run with that seed would draw it."""
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    tables, unassigned = [], 0
    for seed in range(SEEDS):
        found = divide(name, labels, n_clients, alpha, partition_generator(seed, "partition"), min_samples=1)
        tables.append(class_table(labels, found.clients, CLASSES))
        unassigned += found.leftovers
    clients = np.concatenate(tables)
    shares = clients / clients.sum(axis=1, keepdims=True)
    means = shares.mean(axis=0)
    variance = ((shares - 1 / CLASSES) ** 2).mean()
    return Moments(
        float(means.min()), float(means.max()), float(variance), effective_classes(clients),
        unassigned / (SEEDS * len(labels)),
    )  # fmt: skip


def own_moments(per_class: float) -> Moments:
    """Of Dir(per_class): mean 1/K, variance (1/K)(1 - 1/K) / (K per_class + 1), effective classes by drawing."""
    drawn: NDArray[np.float64] = np.random.default_rng(0).dirichlet([per_class] * CLASSES, OWN_DRAWS)
    mean = 1 / CLASSES
    variance = mean * (1 - mean) / (CLASSES * per_class + 1)
    return Moments(mean, mean, variance, effective_classes(drawn))


def row(name: str, alpha: float, n_clients: int) -> list[str]:
    return [f"{alpha:g}", str(n_clients), f"`{name}`", *moments(name, alpha, n_clients).cells()]


def own_row(family: str, alpha: float) -> list[str]:
    per_class = alpha / CLASSES if family.endswith("-k") else alpha
    return [f"{alpha:g}", "", f"Dir({per_class:g}) itself", *own_moments(per_class).cells()]


def _rows(family: str) -> Iterator[list[str]]:
    for alpha in ALPHAS:
        yield own_row(family, alpha)
        for n_clients in CLIENTS:
            for reading in READINGS:
                yield row(family + reading, alpha, n_clients)


def generate() -> str:
    """The text between the markers of the page."""
    parts = [f"### `{family}`: {words}\n\n{as_markdown(HEADS, _rows(family))}" for family, words in FAMILIES.items()]
    return "\n\n".join(parts)


def write_partitions_page(page: Path = PAGE) -> Path:
    return write_between(page, BEGIN, END, generate())
