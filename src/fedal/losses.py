"""Losses as functions of logits, with closed-form gradients w.r.t. them.

Conventions of all methods: logits are (B, K); sums run over classes, means over the batch. The teacher comes first and
is constant. A gradient is that of the batch mean (already divided by B), so it can go straight to `Learner.learn`.
There is no T^2 factor, as in the FedAL paper. Equation labels are those of the FedAL paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedal.lazy import Tensor, torch


@dataclass(frozen=True)
class Loss:
    """A loss at one point: its gradient w.r.t. the student, in the student's shape, and its scalar value on demand."""

    gradient: Tensor
    evaluate: Callable[[], Tensor]

    @property
    def value(self) -> Tensor:
        return self.evaluate()


def _batch(logits: Tensor) -> int:
    """The batch size B, also of stacked clients, each with its own mean.  (..., B, K)"""
    return logits.shape[-2]


def _size(values: Tensor) -> int:
    """B * K, the number of elements of one client."""
    return values.shape[-2] * values.shape[-1]


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """-log softmax(f)_y, the loss l(y, f) of local training in Eq. (client_loss_loc).  (B, K), (B,)"""
    at_label = labels.unsqueeze(-1)
    gradient = torch.softmax(logits, -1)
    gradient.scatter_add_(-1, at_label, gradient.new_full((), -1).expand(at_label.shape))
    return Loss(gradient / _batch(logits), lambda: -torch.log_softmax(logits, -1).gather(-1, at_label).mean())


def soft_cross_entropy(target: Tensor, logits: Tensor) -> Loss:
    """-sum_k target_k log softmax(f)_k for target probabilities; a row of zeros adds nothing.  (B, K), (B, K)"""
    mass = target.sum(-1, keepdim=True)
    return Loss(
        (mass * torch.softmax(logits, -1) - target) / len(logits),
        lambda: -(target * torch.log_softmax(logits, -1)).sum(-1).mean(),
    )


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Loss:
    """KL(softmax(teacher/E) || softmax(student/E)), Eq. (kl); the gradient is exactly 0 at equal logits.

    (B, K), (B, K)
    """
    E = temperature
    p, q = torch.softmax(teacher / E, -1), torch.softmax(student / E, -1)
    return Loss(
        (q - p) / (E * _batch(student)),  # Eq. (gradient_kl)
        lambda: (p * (torch.log_softmax(teacher / E, -1) - torch.log_softmax(student / E, -1))).sum(-1).mean(),
    )


def mse(target: Tensor, values: Tensor) -> Loss:
    """The squared distance, averaged over batch and columns.  (B, K), (B, K), or features (B, d), (B, d)"""
    difference = values - target
    return Loss(2 * difference / _size(difference), lambda: difference.square().mean())


def l1(target: Tensor, values: Tensor) -> Loss:
    """The absolute distance, averaged over batch and columns: the digest loss of FedMD's authors.  (B, K), (B, K)"""
    difference = values - target
    return Loss(difference.sign() / _size(difference), lambda: difference.abs().mean())


def cross_correlation(target: Tensor, student: Tensor, off_diagonal: float, unbiased_std: bool = False) -> Loss:
    """sum_u (1 - C_uu)^2 + off_diagonal * sum_{u != v} (1 + C_uv)^2, C the correlation of student and target logits.

    Columns (classes) are standardised over the batch, so their means and scales in the target have no effect.
    `unbiased_std` reproduces a slip in the code of FCCL's authors: the std divides by B - 1 and C by B, so C_uu < 1.
    (B, K), (B, K)
    """
    batch, degrees = len(student), len(student) - unbiased_std
    centred, scale = _centred(student, degrees)
    others, other_scale = _centred(target, degrees)
    z, z_target = centred / scale, others / other_scale
    C = z.T @ z_target / batch
    on = torch.eye(len(C), dtype=torch.bool, device=C.device)
    slope = 2 * torch.where(on, C - 1, off_diagonal * (C + 1))  # dL/dC
    pull = z_target @ slope.T / (batch * scale)
    pull = pull - z * (pull * z).sum(0) / degrees  # the scale of a column depends on its values,
    return Loss(
        pull - pull.mean(0),  # and so does its mean
        lambda: torch.where(on, (1 - C).square(), off_diagonal * (1 + C).square()).sum(),
    )


def _centred(values: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
    """Columns minus their mean, and their std; 1e-6 under the root prevents division by zero."""
    centred = values - values.mean(0)
    return centred, (centred.square().sum(0) / degrees + 1e-6).sqrt()


def non_target(
    teacher: Tensor, student: Tensor, labels: Tensor, temperature: float = 1.0, renormalise: bool = False
) -> Loss:
    """sum_{k != y} a_k (log a_k - log b_k) with a, b the softmax of teacher/T and student/T over all classes.

    This is not a divergence: it can be negative, and at equal logits it still lowers the label's logit. `renormalise`
    takes the softmax over the K - 1 other classes, which makes it a divergence (always 0 for K = 2).
    (B, K), (B, K), (B,)
    """
    T = temperature
    label = torch.zeros_like(student, dtype=torch.bool).scatter_(1, labels[:, None], value=True)
    hidden = label if renormalise else torch.zeros_like(label)
    log_a, log_b = (torch.log_softmax((f / T).masked_fill(hidden, -torch.inf), -1) for f in (teacher, student))
    a = log_a.exp().masked_fill(label, 0)
    return Loss(
        (a.sum(-1, keepdim=True) * log_b.exp() - a) / (T * len(student)),
        lambda: (a * (log_a - log_b).masked_fill(label, 0)).sum(-1).mean(),
    )


def similarities(features: Tensor, temperature: float) -> Tensor:
    """Cosine similarities of each sample to every other, divided by the temperature.  (B, d) -> (B, B-1)"""
    h, _ = _directions(features)
    return (h @ h.T)[_others(len(h), h.device)].view(len(h), -1) / temperature


def similarity_kl(target: Tensor, features: Tensor, temperature: float) -> Loss:
    """KL(softmax(target) || softmax(similarities(features))) by rows; its gradient is w.r.t. the features.

    (B, B-1), (B, d)
    """
    divergence = kl(target, similarities(features, temperature))
    h, norms = _directions(features)
    d_cosines = h.new_zeros(len(h), len(h))
    d_cosines[_others(len(h), h.device)] = divergence.gradient.flatten() / temperature
    d_h = (d_cosines + d_cosines.T) @ h  # every sample appears in its own row and in those of the others
    gradient = (d_h - h * (h * d_h).sum(-1, keepdim=True)) / norms
    return Loss(gradient.masked_fill(norms <= MIN_NORM, 0), divergence.evaluate)  # a zero vector has no direction


MIN_NORM = 1e-12  # a shorter feature vector counts as zero


def _directions(features: Tensor) -> tuple[Tensor, Tensor]:
    norms = features.norm(dim=-1, keepdim=True).clamp(min=MIN_NORM)
    return features / norms, norms


def _others(n: int, device: torch.device) -> Tensor:
    return ~torch.eye(n, dtype=torch.bool, device=device)


def l2(target: Tensor, values: Tensor) -> Loss:
    """The squared distance, summed over columns and averaged over the batch.  (B, K), (B, K)"""
    difference = values - target
    return Loss(2 * difference / len(values), lambda: difference.square().sum(-1).mean())


def l2_of_probs(target: Tensor, student: Tensor, temperature: float = 1.0) -> Loss:
    """`l2` between softmax(student/E) and the probabilities `target`.  (B, K), (B, K)"""
    p = torch.softmax(student / temperature, -1)
    distance = l2(target, p)
    along = distance.gradient * p
    return Loss((along - p * along.sum(-1, keepdim=True)) / temperature, distance.evaluate)


def kl_to_probs(target: Tensor, student: Tensor, temperature: float = 1.0) -> Loss:
    """KL(target || softmax(student/E)) for a teacher given as probabilities.  (B, K), (B, K)"""
    E = temperature
    return Loss(
        (torch.softmax(student / E, -1) - target) / (E * _batch(student)),
        lambda: (torch.xlogy(target, target) - target * torch.log_softmax(student / E, -1)).sum(-1).mean(),
    )


def d_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy w.r.t. the logits.  (B, K), (B,) -> (B, K)"""
    return cross_entropy(logits, labels).gradient


def d_kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Gradient of KL(teacher || student) w.r.t. the student's logits, Eq. (gradient_kl).  (B, K), (B, K) -> (B, K)"""
    return kl(teacher, student, temperature).gradient


def class_prior(counts: Tensor, smoothing: float = 1.0) -> Tensor:
    """log pi, from a client's label frequencies with `smoothing` pseudo-samples per class.  (K,) -> (K,)"""
    smoothed = counts.double() + smoothing
    return (smoothed / smoothed.sum(-1, keepdim=True)).log()
