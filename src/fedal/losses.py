"""Losses as functions of logits, with closed-form gradients w.r.t. them.

Conventions of all methods: logits are (B, K); sums run over classes, means over the batch. The teacher comes first and
is constant. A gradient is that of the batch mean (already divided by B), so it can go straight to `Learner.learn`.
There is no T^2 factor, as in the FedAL paper. Equation labels are those of the FedAL paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

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


def softmax(logits: Tensor, like: Tensor | None = None) -> Tensor:
    """The softmax over classes, in the layout of `like`, or of the logits.  (..., B, K)

    A stack may store the values of a class as neighbours (see ClassMajor in fedal.learners.stacked). torch's kernel for
    that layout is ten times as fast with ten classes, and rounds in another way. All other logits are row by row.
    """
    layout = logits if like is None else like
    if layout.dim() < 3 or layout.stride(-1) == 1:
        return torch.softmax(logits, -1)
    return torch.softmax(logits.transpose(-1, -2).contiguous(), -2).transpose(-1, -2)


def probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """softmax(logits / E). At E = 1 it is kept with the logits while they live, because several terms of a step ask for
    it: do not change it in place.  (..., B, K)
    """
    if temperature != 1:
        return softmax(logits / temperature)
    kept = getattr(logits, "_probabilities", None)
    if kept is not None and kept[0] == logits._version:
        return cast("Tensor", kept[1])
    p = softmax(logits)
    if not (logits.requires_grad or logits.is_inference()):  # a graph would live for ever; no version
        logits._probabilities = logits._version, p  # type: ignore[attr-defined]
    return p


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """-log softmax(f)_y, the loss l(y, f) of local training in Eq. (client_loss_loc).  (B, K), (B,)"""
    at_label = labels.unsqueeze(-1)
    gradient = probabilities(logits).clone()
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
    p = softmax(teacher if E == 1 else teacher / E, like=student)
    q = probabilities(student, E)
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
    label = torch.zeros_like(student, dtype=torch.bool).scatter_(-1, labels.unsqueeze(-1), value=True)
    hidden = label if renormalise else torch.zeros_like(label)
    log_a, log_b = (torch.log_softmax((f / T).masked_fill(hidden, -torch.inf), -1) for f in (teacher, student))
    a = log_a.exp().masked_fill(label, 0)
    return Loss(
        (a.sum(-1, keepdim=True) * log_b.exp() - a) / (T * _batch(student)),
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


def certainty(p: Tensor) -> Tensor:
    """1 - H(p) / log K: 1 where one class has everything, 0 where all are alike.  (..., K) -> (..., 1)"""
    return (1 + torch.xlogy(p, p).sum(-1, keepdim=True) / math.log(p.shape[-1])).clamp(min=0)


def kl_by_certainty(target: Tensor, student: Tensor, power: float, temperature: float = 1.0) -> Loss:
    """w KL(target || softmax(student/E)), with w = certainty(target)^power for each sample.  (B, K), (B, K)"""
    E, w = temperature, certainty(target) ** power
    return Loss(
        w * (probabilities(student, E) - target) / (E * _batch(student)),
        lambda: (w * (torch.xlogy(target, target) - target * torch.log_softmax(student / E, -1))).sum(-1).mean(),
    )


def kl_both(moving: Tensor, student: Tensor) -> tuple[Loss, Tensor]:
    """KL(softmax(moving) || softmax(student)) whose first side learns too: the loss, and its gradient w.r.t. `moving`.

    (B, K), (B, K)
    """
    log_p, log_q = torch.log_softmax(moving, -1), torch.log_softmax(student, -1)
    terms = log_p.exp() * (log_p - log_q)
    of_each = terms.sum(-1, keepdim=True)
    loss = Loss((log_q.exp() - log_p.exp()) / _batch(student), lambda: of_each.mean())
    return loss, (terms - log_p.exp() * of_each) / _batch(student)


def class_weighted_kl(weights: Tensor, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Loss:
    """sum_k a_k p_k (log p_k - log q_k) with p, q at temperature T and a weight a_k >= 0 per class; KL if all are 1.

    (K,), (B, K), (B, K)
    """
    T = temperature
    log_p, log_q = torch.log_softmax(teacher / T, -1), torch.log_softmax(student / T, -1)
    target = weights * log_p.exp()
    return Loss(
        (target.sum(-1, keepdim=True) * log_q.exp() - target) / (T * _batch(student)),
        lambda: (target * (log_p - log_q)).sum(-1).mean(),
    )


def sigmoid_cross_entropy(target: Tensor, logits: Tensor, columns: Tensor) -> Loss:
    """Binary cross-entropy of sigmoid(f) to targets in [0, 1], averaged over the batch and the marked columns.

    Zero if no column is marked.  (B, K), (B, K), (K,)
    """
    share = columns.to(logits.dtype) / (columns.sum(-1, keepdim=True).clamp(min=1) * _batch(logits))
    apart = torch.nn.functional.binary_cross_entropy_with_logits
    return Loss(
        (torch.sigmoid(logits) - target) * share,
        lambda: (apart(logits, target, reduction="none") * share).sum(),
    )


def by_autograd(function: Callable[[Tensor], Tensor], at: Tensor) -> Loss:
    """A loss without a short closed form: `function` maps the logits to a scalar.  (B, K)"""
    values = at.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = function(values)
    return Loss(torch.autograd.grad(value, values)[0], value.detach)


def d_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy w.r.t. the logits.  (B, K), (B,) -> (B, K)"""
    return cross_entropy(logits, labels).gradient


def d_kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Gradient of KL(teacher || student) w.r.t. the student's logits, Eq. (gradient_kl).  (B, K), (B, K) -> (B, K)"""
    return kl(teacher, student, temperature).gradient


def class_prior(counts: Tensor, smoothing: float) -> Tensor:
    """log pi, from a client's label frequencies; each class gets a share `smoothing` of all its samples on top.

    The pseudo-samples hold the logits of classes that the client has never seen: with too few of them, log pi is so low
    that the loss leaves those logits free, and the mean over clients averages noise.  (K,) -> (K,)
    """
    exact = counts.double()
    smoothed = exact + smoothing * exact.sum(-1, keepdim=True)
    return (smoothed / smoothed.sum(-1, keepdim=True)).log()


def own_classes(counts: Tensor) -> Tensor:
    """0 for the classes of a client and -inf for all others: added to logits, it leaves absent classes out.

    Their logits then get no gradient.  (K,) -> (K,)
    """
    return torch.where(counts > 0, 0.0, -torch.inf).double()


@dataclass(frozen=True)
class PrivateLoss:
    """Cross-entropy on private labels with class weights w and label smoothing s, as torch's CrossEntropyLoss.

    The target of a sample with label y is t_k = w_k ((1 - s) [k = y] + s / K). The loss is the sum over samples of
    -t log p, divided by the sum of their w_y. Where classes are left out, with logits of -inf, the smoothing is spread
    over those that are `own`: s / |own| each, and 0 for the others, whose log p is -inf.
    """

    weights: Tensor | None = None  # (K,)
    smoothing: float = 0.0
    own: Tensor | None = None  # (K,), or (G, 1, K) of stacked clients; None: all

    @property
    def is_plain(self) -> bool:
        return self.weights is None and not self.smoothing

    def gradient(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(p sum_k t_k - t) / sum w_y.  (..., B, K), (..., B) -> (..., B, K)"""
        n_classes = logits.shape[-1]
        target = (1 - self.smoothing) * torch.nn.functional.one_hot(labels, n_classes).to(logits.dtype)
        if self.own is None:
            target += self.smoothing / n_classes
        else:
            share = self.smoothing * self.own.double() / self.own.sum(-1, keepdim=True)
            target += share.to(logits.dtype)
        total: Tensor | int = _batch(logits)
        if self.weights is not None:
            weights = self.weights.to(logits.dtype)
            target, total = target * weights, weights[labels].sum(-1)[..., None, None]
        return (torch.softmax(logits, -1) * target.sum(-1, keepdim=True) - target) / total


def balanced_weights(counts: Tensor) -> Tensor:
    """n / (classes x n_k) of the classes that occur, as in scikit-learn, and 1 for the others.  (K,) -> (K,)"""
    present = counts > 0
    weights = counts.sum() / (present.sum() * counts.clamp(min=1))
    return torch.where(present, weights, torch.ones_like(weights))
