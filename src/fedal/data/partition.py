"""Who gets which samples: pure functions from labels (or users) and a generator to one sorted index array per client.

`alpha` is the Dirichlet concentration: smaller is more skewed. The result is saved with the run,
so that it never has to be drawn again.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedal.errors import PartitionError, TooFewSamplesError, did_you_mean
from fedal.seeding import Indices


@dataclass(frozen=True)
class Partition:
    """The samples of each client, and how many samples no client has."""

    clients: tuple[Indices, ...]
    leftovers: int


def partition_iid(labels: npt.NDArray[Any], n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every sample once, at random; sizes differ by at most one."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), n_clients)]


def partition_dirichlet(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Every sample once; each class is split over the clients by Dir(alpha), so sizes differ."""
    parts: list[list[Indices]] = [[] for _ in range(n_clients)]
    for k in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == k))
        share = np.cumsum(np.exp(_log_dirichlet(alpha, n_clients, rng)))
        cuts = (share[:-1] / share[-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def partition_dirichlet_client(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Every client has the class shares q_n ~ Dir(alpha), all have the same size, and no sample is given twice.

    The size is the largest at which every q_n can be kept; samples that no client can take then stay unassigned.
    """
    members = _members(labels)
    shares = _dirichlet(alpha, (n_clients, len(members)), rng)
    return _deal(members, equal_counts(shares, _sizes(members), len(labels) // n_clients), rng)


def partition_dirichlet_client_k(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """As dirichlet-client with alpha / K per class: far more skewed (alpha 1, K 10: about 2.5 classes per client)."""
    return partition_dirichlet_client(labels, n_clients, _per_class(alpha, labels), rng)


def partition_dirichlet_client_overlap(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Independent clients with class shares q_n ~ Dir(alpha): two of them may own the same sample.

    Each draws from all the data, nothing twice. Its size is n / N, or the largest at which its q_n can be kept.
    """
    members = _members(labels)
    shares = _dirichlet(alpha, (n_clients, len(members)), rng)
    each = (equal_counts(q[None], _sizes(members), len(labels) // n_clients) for q in shares)
    return [_deal(members, counts, rng)[0] for counts in each]


def partition_dirichlet_client_k_overlap(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """As dirichlet-client-overlap with alpha / K per class."""
    return partition_dirichlet_client_overlap(labels, n_clients, _per_class(alpha, labels), rng)


def partition_dirichlet_client_balanced(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Equal sizes, (nearly) all data used, and therefore class shares that are less skewed than Dir(alpha).

    Clients want q_n ~ Dir(alpha) and draw from it in turn. A class that is used up is removed from every q_n, so that
    the late draws even the table out: every client ends with n / N samples, every class with all its samples given.
    """
    log_q = _log_dirichlet(alpha, (n_clients, len(np.unique(labels))), rng)
    return _draw_in_turn(labels, log_q, len(labels) // n_clients, rng)


def partition_dirichlet_client_k_balanced(
    labels: npt.NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """As dirichlet-client-balanced with alpha / K per class."""
    return partition_dirichlet_client_balanced(labels, n_clients, _per_class(alpha, labels), rng)


def partition_by_user(
    users: npt.NDArray[Any], n_clients: int, rng: np.random.Generator, min_samples: int = 1
) -> list[Indices]:
    """One client is one user with all their samples; drawn at random from the users with at least min_samples."""
    _, of_sample, counts = np.unique(users, return_inverse=True, return_counts=True)
    eligible = np.flatnonzero(counts >= min_samples)
    if n_clients > len(eligible):
        raise PartitionError(
            f"{n_clients} clients need {n_clients} users with at least {min_samples} samples each; "
            f"the data has {len(eligible)} (of {len(counts)} users). Try fewer clients or a smaller min_samples."
        )
    chosen = np.sort(rng.choice(eligible, n_clients, replace=False))
    return [np.flatnonzero(of_sample == user) for user in chosen]


def partition_pooled(labels: npt.NDArray[Any], n_clients: int) -> list[Indices]:
    """Every client owns every sample: not a federation, but the ceiling of one (docs/partitions.md)."""
    return [np.arange(len(labels)) for _ in range(n_clients)]


RARE = 0.01
"""The share of the owned samples below which a class is rare."""

POOLED = "pooled"
"""The partition that reveals everything to everyone: for simulations only."""

BY_OWNER = "by-owner"
"""What the record calls it where each client brought its own data. Nothing is drawn, so it cannot be chosen."""

PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": partition_iid,
    "dirichlet": partition_dirichlet,
    "dirichlet-client": partition_dirichlet_client,
    "dirichlet-client-k": partition_dirichlet_client_k,
    "dirichlet-client-overlap": partition_dirichlet_client_overlap,
    "dirichlet-client-k-overlap": partition_dirichlet_client_k_overlap,
    "dirichlet-client-balanced": partition_dirichlet_client_balanced,
    "dirichlet-client-k-balanced": partition_dirichlet_client_k_balanced,
    "by-user": partition_by_user,
    POOLED: partition_pooled,
}


def divide(
    name: str,
    labels: npt.NDArray[Any],
    n_clients: int,
    alpha: float,
    rng: np.random.Generator,
    users: npt.NDArray[Any] | None = None,
    min_samples: int = 8,
    client_names: Sequence[str] | None = None,
) -> Partition:
    """The partition of that name with everything checked: raises PartitionError for what cannot be done.

    Indices count in `labels` as given here. Each function of PARTITIONS gets the arguments that it names.
    A client with too few samples is an error rather than a reason to draw again: that would change the distribution.
    """
    if name not in PARTITIONS:
        hint = did_you_mean(name, PARTITIONS)
        raise PartitionError(f'unknown partition "{name}". {hint}There are: {", ".join(PARTITIONS)}.')
    if not (alpha > 0 and math.isfinite(alpha)):
        raise PartitionError(f"alpha is {alpha}; expected a positive number (smaller is more skewed).")
    if n_clients < 1:
        raise PartitionError(f"{n_clients} clients; expected at least 1.")
    if n_clients > len(labels):
        raise PartitionError(
            f"{n_clients} clients and only {len(labels)} samples to divide. Try fewer clients or a smaller public set."
        )
    if name == "by-user" and users is None:
        raise PartitionError('partition "by-user" needs to know whose each sample is, and this dataset does not say.')
    if users is not None and len(users) != len(labels):
        raise PartitionError(f"{len(users)} users for {len(labels)} labels; expected one user per sample.")

    given: dict[str, Any] = dict(labels=labels, users=users, n_clients=n_clients, alpha=alpha, rng=rng)
    given["min_samples"] = min_samples
    partition = PARTITIONS[name]
    clients = tuple(partition(**{argument: given[argument] for argument in inspect.signature(partition).parameters}))

    sizes = [len(indices) for indices in clients]
    if (fewest := min(sizes)) < min_samples:
        n = sizes.index(fewest)
        client = client_names[n] if client_names is not None else f"client-{n}"
        others = sum(size < min_samples for size in sizes) - 1
        as_large_as_can_be = fewest == len(labels) // n_clients  # then neither alpha nor the seed matters
        remedies = ["fewer clients"] if as_large_as_can_be else ["a larger alpha", "fewer clients", "another seed"]
        raise TooFewSamplesError(
            f'client "{client}" gets {fewest} sample{"s" * (fewest != 1)}; the minimum is {min_samples}'
            + (f" ({others} more below it)" if others else ""),
            [*remedies, *([f"--set min_samples={fewest}"] if fewest else [])],
            fewest,
        )
    given_out = np.zeros(len(labels), dtype=bool)
    for indices in clients:
        given_out[indices] = True
    return Partition(clients, leftovers=int(np.count_nonzero(~given_out)))


def draw_public(n_samples: int, size: int, rng: np.random.Generator) -> Indices:
    """The samples of the public set, uniform and sorted; drawn first, so that clients share what is left."""
    if not 0 <= size <= n_samples:
        raise PartitionError(f"a public set of {size} samples cannot be drawn from {n_samples}.")
    return np.sort(rng.permutation(n_samples)[:size])


def class_table(labels: npt.NDArray[Any], parts: Sequence[Indices], n_classes: int) -> Indices:
    """How many samples of each class each client got.  -> (N, K)"""
    return np.stack([np.bincount(labels[indices], minlength=n_classes) for indices in parts])


def effective_classes(table: npt.NDArray[np.integer | np.floating]) -> float:
    """The effective number of classes of a client, exp(entropy of its class shares): mean over the clients.

    1 means that every client has a single class, K that each has all classes equally often. A client without samples
    does not count; nan when there is no other.
    """
    table = table[table.sum(axis=1) > 0]
    if not len(table):
        return math.nan
    shares = table / table.sum(axis=1, keepdims=True)
    entropies = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1)
    return float(np.exp(entropies).mean())


class RarestClass(NamedTuple):
    """The class with the fewest samples over all clients."""

    label: int
    samples: int
    owners: int  # clients that have any
    owned: int  # samples of all classes

    @property
    def is_rare(self) -> bool:
        """Whether it has fewer than 1% of the samples that clients own."""
        return self.samples < RARE * self.owned


def rarest_class(table: Indices) -> RarestClass:
    """The first of them if several have as few.  table: (N, K)"""
    totals = table.sum(axis=0)
    label = int(totals.argmin())
    return RarestClass(label, int(totals[label]), int(np.count_nonzero(table[:, label])), int(totals.sum()))


def largest_remainder(shares: npt.NDArray[np.float64], size: int) -> Indices:
    """`size` samples by shares: each row is rounded down, then the largest remainders get one more.  (N, K) -> (N, K)

    Every row adds up to `size`, and no count differs from size * share by one or more.
    """
    wanted = shares * size
    counts = np.floor(wanted).astype(np.int64)
    order = np.argsort(counts - wanted, axis=1, kind="stable")  # equal remainders: the first class
    rank = np.argsort(order, axis=1, kind="stable")
    missing: Indices = size - counts.sum(axis=1, keepdims=True)
    return counts + (rank < missing)


def equal_counts(shares: npt.NDArray[np.float64], n_of_class: Indices, most: int) -> Indices:
    """Samples per client and class at the largest common size, up to `most`, that the classes can fill.  -> (N, K)

    That size is floor(min_k n_k / sum_n q_nk). Whole samples may still ask a class for a few more than it has, because
    several clients may round up there; the size is lowered until every class can give what is asked.
    """
    asked = shares.sum(axis=0)
    short = asked * most > n_of_class  # the other classes limit nothing
    size = int(min([most, *(n_of_class[short] / asked[short])]))
    while ((counts := largest_remainder(shares, size)).sum(axis=0) > n_of_class).any():
        size -= 1
    return counts


def _deal(members: Sequence[Indices], counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """The samples of each client, drawn at random by its counts of each class, none twice.  counts: (N, K)"""
    parts: list[list[Indices]] = [[] for _ in counts]
    for samples, of_clients in zip(members, counts.T, strict=True):
        *pieces, _ = np.split(rng.permutation(samples), np.cumsum(of_clients))  # the rest stays unassigned
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _members(labels: npt.NDArray[Any]) -> list[Indices]:
    """The samples of each class that occurs."""
    return [np.flatnonzero(labels == k) for k in np.unique(labels)]


def _sizes(members: Sequence[Indices]) -> Indices:
    return np.array([len(samples) for samples in members], dtype=np.int64)


def _per_class(alpha: float, labels: npt.NDArray[Any]) -> float:
    return alpha / len(np.unique(labels))


def _dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Dir(alpha) vectors along the last axis; with a tiny alpha, all but the largest entry become zero."""
    shares = np.exp(_log_dirichlet(alpha, shape, rng))
    normalised: npt.NDArray[np.float64] = shares / shares.sum(axis=-1, keepdims=True)
    return normalised


def _log_dirichlet(alpha: float, shape: int | tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Logarithms of Dir(alpha) vectors along the last axis, up to a constant: the largest is 0.

    A Gamma(alpha) variable is Gamma(alpha + 1) * U^(1/alpha). In logarithms no weight becomes zero, however small
    alpha is, so that the vector can still be renormalised when its large entries are removed.
    """
    alpha = max(alpha, 1e-300)
    log_gamma = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    log_q: npt.NDArray[np.float64] = log_gamma - log_gamma.max(axis=-1, keepdims=True)
    return log_q


def _draw_in_turn(
    labels: npt.NDArray[Any], log_q: npt.NDArray[np.float64], size: int, rng: np.random.Generator
) -> list[Indices]:
    """Every client takes one sample per turn, its class drawn from q_n, until each has `size`.  log_q: (N, K)"""
    log_q = log_q.copy()
    pools = [rng.permutation(samples).tolist() for samples in _members(labels)]
    parts: list[list[int]] = [[] for _ in log_q]
    cumulative = _cumulative(log_q)
    for turn in rng.random((size, len(log_q))).tolist():
        for n, u in enumerate(turn):
            k = bisect_right(cumulative[n], u * cumulative[n][-1])  # an exhausted class has no width: never hit
            parts[n].append(pools[k].pop())
            if not pools[k]:
                log_q[:, k] = -np.inf
                cumulative = _cumulative(log_q)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def _cumulative(log_q: npt.NDArray[np.float64]) -> list[list[float]]:
    """Cumulative weights of each client over the classes that are left."""
    largest = log_q.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        return []  # the last sample is gone
    cumulative: list[list[float]] = np.cumsum(np.exp(log_q - largest), axis=-1).tolist()
    return cumulative
