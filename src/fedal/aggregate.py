"""How many outputs become one: pure functions of stacked tensors, client axis first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from fedal.lazy import Tensor, torch


def mean_over_clients(outputs: Tensor) -> Tensor:
    """f-bar: the mean over all who spoke, in roster order so that arrival order cannot matter.  (N, B, K) -> (B, K)"""
    return outputs.mean(0)


def leave_one_out(mean: Tensor, own: Tensor, count: int) -> Tensor:
    """f-bar_{-n}: the mean over the other clients, recovered from the mean over all `count` and the own part.

    Algorithm 1 broadcasts the inclusive mean while Eq. (kl) uses the exclusive one: (N f-bar - f_n) / (N - 1).
    """
    if count < 2:
        raise ValueError(f"the mean over the others needs at least two clients, {count} spoke")
    return (count * mean - own) / (count - 1)


def average_weights(members: Sequence[Mapping[str, Tensor]], samples: Sequence[float]) -> dict[str, Tensor]:
    """Parameters and float buffers averaged with weights `samples`; integer buffers are those of the largest member.

    BatchNorm statistics are float buffers and take part. One member alone is returned as it is, to the bit.
    """
    if len(members) == 1:
        return dict(members[0])
    total, largest = sum(samples), max(range(len(members)), key=samples.__getitem__)
    return {
        name: cast("Tensor", sum(m[name] * (share / total) for m, share in zip(members, samples, strict=True)))
        if value.is_floating_point()
        else value
        for name, value in members[largest].items()
    }


def cluster_means(points: Tensor, labels: Tensor, clusters: int, first: int) -> tuple[Tensor, Tensor]:
    """Labels and means of C-means (Lloyd), starting at `labels` (-1: unknown).  (N, D), (N,) -> (N,), (C, D)

    A cluster without members starts at the point that is farthest from all other centroids (the very first one at
    point `first`), so nothing is random and with C = N every distinct point is its own cluster.
    """
    for _ in range(100):  # it settles in a handful of steps
        centroids = _centroids(points, labels, clusters, first)
        settled, labels = labels, nearest(points, centroids)
        if torch.equal(settled, labels):
            break
    return labels, centroids


def _centroids(points: Tensor, labels: Tensor, clusters: int, first: int) -> Tensor:
    members = [points[labels == cluster] for cluster in range(clusters)]
    centroids = {cluster: mine.mean(0) for cluster, mine in enumerate(members) if len(mine)}
    for cluster in range(clusters):
        if cluster not in centroids:
            known = torch.stack(list(centroids.values())) if centroids else None
            start = first if known is None else int(_squared_distances(points, known).amin(1).argmax())
            centroids[cluster] = points[start]
    return torch.stack([centroids[cluster] for cluster in range(clusters)])


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """The index of the nearest centroid to each point, the lowest of equals.  (N, D), (C, D) -> (N,)"""
    return _squared_distances(points, centroids).argmin(1)


def _squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    return (points[:, None] - centroids).square().sum(-1)


@dataclass
class ClassSums:
    """What a client adds up per class of its own samples, in double precision, to upload the means."""

    sums: Tensor  # (K, width)
    counts: Tensor  # (K,)

    @classmethod
    def empty(cls, n_classes: int, width: int, *, device: torch.device | str) -> ClassSums:
        sums = torch.zeros(n_classes, width, dtype=torch.float64, device=device)
        return cls(sums, sums.new_zeros(n_classes, dtype=torch.int32))

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """(B, width), (B,)"""
        self.sums.index_add_(0, labels, rows.to(self.sums.dtype))
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def means(self, dtype: torch.dtype) -> Tensor:
        """A class without samples has a row of zeros and a count of zero.  -> (K, width)"""
        return (self.sums / self.counts.clamp(min=1)[:, None]).to(dtype)


def class_weights(counts: Tensor, by: Literal["clients", "samples"]) -> Tensor:
    """What each client's row of a class weighs: alike for all who have the class, or by how many samples they have."""
    return counts.double() if by == "samples" else (counts > 0).double()


def class_means(rows: Tensor, weights: Tensor) -> Tensor:
    """Per class the weighted mean over those who have it; zeros where nobody does.  (N, K, d), (N, K) -> (K, d)"""
    return torch.einsum("nk,nkd->kd", _shares(weights, 0).to(rows.dtype), rows)


def class_means_of_others(rows: Tensor, weights: Tensor) -> Tensor:
    """For each client the same over the others, never itself.  (N, K, d), (N, K) -> (N, K, d)"""
    others = (
        weights * (1 - torch.eye(len(weights), device=weights.device))[:, :, None]
    )  # (N, N, K): what m weighs for n
    return torch.einsum("nmk,mkd->nkd", _shares(others, 1).to(rows.dtype), rows)


def other_owners(counts: Tensor) -> Tensor:
    """For each client, how many of the others have each class.  (N, K) -> (N, K)"""
    has = (counts > 0).to(counts.dtype)
    return has.sum(0, dtype=counts.dtype) - has


def _shares(weights: Tensor, clients: int) -> Tensor:
    """Weights that sum to one over the axis of clients; all zero where nobody has any."""
    total = weights.sum(clients, keepdim=True)
    return weights / torch.where(total > 0, total, 1)
