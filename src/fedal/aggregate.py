"""Aggregation over clients: pure functions of stacked tensors, client axis first.

`combined` is the one place where the outputs of all clients become one value. A new rule is a function of the stacked
values and an entry in `RULES`, or a weight in `CONFIDENCE`; every method that averages outputs then offers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from fedal.lazy import Tensor, torch
from fedal.weighting import CONFIDENCE, SHARPNESS, ConfidenceRule, SharpRule, filtered_mean, sharpened, weighted_mean

RobustRule = Literal["mean", "median", "trimmed", "geometric-median", "multi-krum", "cronus"]
Rule = Literal[RobustRule, ConfidenceRule, SharpRule]
WeightRule = Literal["mean", "median", "trimmed"]
Space = Literal["logits", "probabilities"]


def mean_over_clients(outputs: Tensor) -> Tensor:
    """f-bar: the mean over the clients that responded, stacked in roster order.  (N, B, K) -> (B, K)

    Roster order makes the result independent of arrival order.
    """
    return outputs.mean(0)


def leave_one_out(mean: Tensor, own: Tensor, count: int) -> Tensor:
    """f-bar_{-n}: the mean over the other clients, recovered from the mean over all `count` and the own part.

    Algorithm 1 broadcasts the inclusive mean while Eq. (kl) uses the exclusive one: (N f-bar - f_n) / (N - 1).
    (B, K), (B, K) -> (B, K)
    """
    if count < 2:
        raise ValueError(f"the mean over the others needs at least two clients; {count} responded")
    return (count * mean - own) / (count - 1)


def combined(values: Tensor, rule: Rule, space: Space, trim: float, sharpness: float | None = None) -> Tensor:
    """The value that `rule` makes of all clients' logits, or of their probabilities.  (N, B, K) -> (B, K)

    A mean of probabilities needs nothing more. Medians and trimmed means of single classes do not sum to one, so the
    result is divided by its sum.
    """
    are_logits = space == "logits"
    strength = SHARPNESS.get(rule, 1.0) if sharpness is None else sharpness
    if rule in CONFIDENCE:
        value = weighted_mean(values, rule, strength, are_logits=are_logits)
    elif rule in RULES:
        value = RULES[rule](values, trim)
    else:
        value = sharpened(mean_over_clients(values), cast("SharpRule", rule), strength, are_logits=are_logits)
    return value if are_logits or rule == "mean" else _on_the_simplex(value, values)


def majority(votes: Tensor, n_classes: int, *, consistent: bool = False) -> Tensor:
    """The class with most votes for each sample; the lowest one wins ties.  (N, s, P) -> (P,)

    `consistent` counts clients whose s votes all agree; where there is no such client, every vote counts.
    """
    each = torch.nn.functional.one_hot(votes.long(), n_classes)  # (N, s, P, K)
    counts = each.sum((0, 1))
    if consistent:
        agreed = (each * (votes == votes[:, :1]).all(1)[:, None, :, None]).sum((0, 1))
        counts = torch.where(agreed.sum(-1, keepdim=True) > 0, agreed, counts)
    return counts.argmax(-1)


def median(values: Tensor, trim: float = 0.0) -> Tensor:
    """The median over clients of each number; between the two middle ones for even N.  (N, ...) -> (...)"""
    ordered, n = values.sort(0).values, len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed_mean(values: Tensor, trim: float) -> Tensor:
    """The mean over clients of each number without its floor(trim * N) highest and lowest values.

    With none to drop, it is the mean, bit for bit.  (N, ...) -> (...)
    """
    n, dropped = len(values), _dropped(len(values), trim)
    return values.sort(0).values[dropped : n - dropped].mean(0) if dropped else values.mean(0)


def geometric_median(values: Tensor, trim: float = 0.0) -> Tensor:
    """The point of R^K with the least sum of distances to the clients', for each sample.  (N, B, K) -> (B, K)

    Weiszfeld's steps from the median, with distances smoothed by `NEAR`. Each step adds a weighted mean of
    differences, so that equal uploads come back bit for bit.
    """
    by_sample, point = values.transpose(0, 1).contiguous(), median(values)[:, None]  # (B, N, K), (B, 1, K)
    for _ in range(WEISZFELD_STEPS):
        apart = by_sample - point
        closeness = (apart.square().sum(-1) + NEAR**2).rsqrt()[:, None]  # (B, 1, N)
        step = torch.bmm(closeness, apart) / closeness.sum(-1, keepdim=True)
        point = point + step
        if bool((step.abs() <= SETTLED * (1 + point.abs())).all()):
            break
    return point[:, 0]


def multi_krum(values: Tensor, trim: float) -> Tensor:
    """The mean without the f = floor(trim * N) clients that are farthest from the others.  (N, ...) -> (...)

    A client's score is the sum of its squared distances to its N - f - 2 nearest neighbours, over the whole batch
    (Blanchard et al. 2017, arXiv 1703.02757). Dropping numbers one by one keeps the rest of a liar's upload, and drops
    the few experts for a class with it; dropping a client keeps nothing of it. With none to drop, it is the mean.
    Two liars must not be each other's only neighbours, so f is at most (N - 3) / 2.
    """
    n = len(values)
    dropped = min(_dropped(n, trim), max(0, (n - 3) // 2))
    if not dropped:
        return values.mean(0)
    flat = values.flatten(1)
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    scores = apart.sort(1).values[:, 1 : n - dropped - 1].sum(1)  # the nearest of all is the client itself
    kept = scores.sort(stable=True).indices[: n - dropped].sort().values
    return values[kept].mean(0)


def _dropped(n: int, trim: float) -> int:
    return min(int(trim * n + 1e-9), (n - 1) // 2)  # 0.29 * 100 is 28.999999999999996


WEISZFELD_STEPS = 20
SETTLED = 1e-6  # a smaller step, relative to 1 + the value, ends the search
NEAR = 1e-6  # a distance below it counts as this distance
SCARCE = 1e-6  # less mass than this counts as none

RULES: dict[RobustRule, Callable[[Tensor, float], Tensor]] = {
    "mean": lambda values, trim: mean_over_clients(values),
    "median": median,
    "trimmed": trimmed_mean,
    "geometric-median": geometric_median,
    "multi-krum": multi_krum,
    "cronus": filtered_mean,
}
assert {*RULES, *CONFIDENCE, *get_args(SharpRule)} == {*get_args(Rule)}


def _on_the_simplex(value: Tensor, values: Tensor) -> Tensor:
    """The rows divided by their sums; a row that already sums to one stays as it is, bit for bit.

    If nothing is left of a row, since no class has the votes of enough clients, it is the mean of all clients.
    (B, K), (N, B, K) -> (B, K)
    """
    total = value.sum(-1, keepdim=True)
    scaled = torch.where((total - 1).abs() <= SCARCE, value, value / total.clamp(min=SCARCE))
    return torch.where(total < SCARCE, values.mean(0), scaled)


def average_weights(
    members: Sequence[Mapping[str, Tensor]], samples: Sequence[float], rule: WeightRule = "mean", trim: float = 0.0
) -> dict[str, Tensor]:
    """Parameters and float buffers averaged with weights `samples`; integer buffers come from the largest member.

    BatchNorm statistics are float buffers and are averaged too. A single member is returned unchanged, bit for bit.
    The median and the trimmed mean are taken number by number, and all members count equally.
    Each member maps names to tensors of any shape; the average keeps these names and shapes.
    """
    if len(members) == 1:
        return dict(members[0])
    total, largest = sum(samples), max(range(len(members)), key=samples.__getitem__)

    def average(name: str) -> Tensor:
        if rule == "mean":
            return cast("Tensor", sum(m[name] * (share / total) for m, share in zip(members, samples, strict=True)))
        return RULES[rule](torch.stack([m[name] for m in members]), trim)

    return {name: average(name) if value.is_floating_point() else value for name, value in members[largest].items()}


def cluster_means(points: Tensor, labels: Tensor, clusters: int, first: int) -> tuple[Tensor, Tensor]:
    """Labels and centroids of C-means (Lloyd), starting from `labels` (-1: unknown).  (N, D), (N,) -> (N,), (C, D)

    A cluster without members starts at the point farthest from all other centroids; the very first one starts at
    point `first`. So nothing is random, and with C = N every distinct point is its own cluster.
    """
    for _ in range(100):  # converges in a handful of steps
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
    """The index of the centroid nearest to each point; the lowest index wins ties.  (N, D), (C, D) -> (N,)"""
    return _squared_distances(points, centroids).argmin(1)


def _squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    return (points[:, None] - centroids).square().sum(-1)


@dataclass
class ClassSums:
    """A client's running sums per class over its own samples, in double precision; it uploads their means."""

    sums: Tensor  # (K, width)
    counts: Tensor  # (K,)

    @classmethod
    def empty(cls, n_classes: int, width: int, *, device: torch.device | str) -> ClassSums:
        sums = torch.zeros(n_classes, width, dtype=torch.float64, device=device)
        return cls(sums, sums.new_zeros(n_classes, dtype=torch.int32))

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Adds each row to the sum of its label.  (B, width), (B,)"""
        self.sums.index_add_(0, labels, rows.to(self.sums.dtype))
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def means(self, dtype: torch.dtype) -> Tensor:
        """The mean row of each class; zeros for a class without samples.  -> (K, width)"""
        return (self.sums / self.counts.clamp(min=1)[:, None]).to(dtype)


def class_weights(counts: Tensor, by: Literal["clients", "samples"]) -> Tensor:
    """The weight of each client's row of a class: equal for all clients that have it, or their sample count.

    (N, K) -> (N, K)
    """
    return counts.double() if by == "samples" else (counts > 0).double()


def class_means(rows: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of each class over the clients that have it, else zeros.  (N, K, d), (N, K) -> (K, d)"""
    return torch.einsum("nk,nkd->kd", _shares(weights, 0).to(rows.dtype), rows)


def class_means_of_others(rows: Tensor, weights: Tensor) -> Tensor:
    """`class_means` over the other clients, for each client.  (N, K, d), (N, K) -> (N, K, d)"""
    others = (
        weights * (1 - torch.eye(len(weights), device=weights.device))[:, :, None]
    )  # (N, N, K): the weight of m for n
    return torch.einsum("nmk,mkd->nkd", _shares(others, 1).to(rows.dtype), rows)


def other_owners(counts: Tensor) -> Tensor:
    """How many of the other clients have each class, for each client.  (N, K) -> (N, K)"""
    has = (counts > 0).to(counts.dtype)
    return has.sum(0, dtype=counts.dtype) - has


def _shares(weights: Tensor, clients: int) -> Tensor:
    """Weights normalised to sum to one over the client axis; all zero where the total is zero."""
    total = weights.sum(clients, keepdim=True)
    return weights / torch.where(total > 0, total, 1)
