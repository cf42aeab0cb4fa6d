"""Each loss as a function of logits, with its closed-form gradient in them.

Conventions, once for all methods: logits are (B, K); sums run over classes, means over the batch; the teacher comes
first and is a constant; a gradient is that of the batch mean (already divided by B), so it can go straight to
`Learner.learn`. No T^2 factor anywhere (the FedAL paper writes none). Equation labels are those of the FedAL paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedal.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A loss at one point: its gradient in the student's logits, and its value for whoever asks."""

    gradient: Tensor
    evaluate: Callable[[], Tensor]

    @property
    def value(self) -> Tensor:
        return self.evaluate()


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """-log softmax(f)_y, the loss l(y, f) of local training in Eq. (client_loss_loc)."""
    rows = torch.arange(len(logits), device=logits.device)
    gradient = torch.softmax(logits, -1)
    gradient[rows, labels] -= 1
    return Loss(gradient / len(logits), lambda: -torch.log_softmax(logits, -1)[rows, labels].mean())


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Loss:
    """KL(softmax(teacher/E) || softmax(student/E)), Eq. (kl); its gradient is exactly zero at equal logits."""
    E = temperature
    p, q = torch.softmax(teacher / E, -1), torch.softmax(student / E, -1)
    return Loss(
        (q - p) / (E * len(student)),  # Eq. (gradient_kl)
        lambda: (p * (torch.log_softmax(teacher / E, -1) - torch.log_softmax(student / E, -1))).sum(-1).mean(),
    )


def mse(target: Tensor, values: Tensor) -> Loss:
    """Mean over batch and columns of the squared distance; also for features (B, d)."""
    difference = values - target
    return Loss(2 * difference / difference.numel(), lambda: difference.square().mean())


def l1(target: Tensor, values: Tensor) -> Loss:
    """Mean over batch and columns of the absolute distance (the digest loss of FedMD's authors)."""
    difference = values - target
    return Loss(difference.sign() / difference.numel(), lambda: difference.abs().mean())


def d_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy in the logits.  (B, K), (B,) -> (B, K)"""
    return cross_entropy(logits, labels).gradient


def d_kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Gradient of KL(teacher || student) in the student's logits, Eq. (gradient_kl).  (B, K) -> (B, K)"""
    return kl(teacher, student, temperature).gradient


def class_prior(counts: Tensor, smoothing: float = 1.0) -> Tensor:
    """log pi: a client's own label frequencies with `smoothing` pseudo-samples per class.  (K,) -> (K,)"""
    smoothed = counts + smoothing
    return (smoothed / smoothed.sum()).log()
