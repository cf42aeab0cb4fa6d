"""Aggregates that need a memory: what each client has said about the classes on earlier public batches.

Under label skew a client names its own frequent classes too often, whatever the sample. A single batch does not show
that, a running mean over many does. The server has seen all of it already, so nothing more is sent or revealed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from fedal.lazy import Tensor, torch
from fedal.learners.base import State, copied
from fedal.weighting import sharpened

RememberingRule = Literal["debias", "coverage", "align"]

Remembered = Literal["probabilities", "log-probabilities"]

RATE = 0.02  # the weight of the newest batch: the last fifty batches count most


class ClassHistory:
    """One running mean over public samples per client, of K numbers each."""

    def __init__(self, device: torch.device | str) -> None:
        self._means: dict[str, Tensor] = {}
        self._device = device

    def with_batch(self, clients: Sequence[str], values: Tensor) -> Tensor:
        """The running means of these clients, the new batch included; others keep theirs.  (N, B, K) -> (N, K)"""
        newest = values.mean(1)
        old = torch.stack([self._means.get(n, value) for n, value in zip(clients, newest.unbind(), strict=True)])
        means = old + RATE * (newest - old)
        self._means.update(zip(clients, means.unbind(), strict=True))
        return means

    def state_dict(self) -> State:
        return dict(copied(self._means, self._device))

    def load_state_dict(self, state: State) -> None:
        self._means = dict(copied(state, self._device))


def debiased(values: Tensor, log_p: Tensor, history: Tensor, strength: float, *, are_logits: bool) -> Tensor:
    """The mean of what the clients say beyond what they always say.  (N, B, K), (N, B, K), (N, K) -> (B, K)

    With m_n the running mean of log p_n: the mean over n of f_n - s m_n, or of softmax(log p_n - s m_n). It assumes
    that classes are about equally frequent in public data. For s = 0 it is the mean, bit for bit.
    """
    if not strength:
        return values.mean(0)
    if are_logits:
        return values.mean(0) - strength * history.mean(0)
    return torch.softmax(log_p - strength * history[:, None], -1).mean(0)


def covered(values: Tensor, log_p: Tensor, history: Tensor, strength: float, *, are_logits: bool) -> Tensor:
    """The mean with a weight per client and class: its running share h_nk of the class.  (N, B, K), ... -> (B, K)

    w_nk = h_nk^s / sum_m h_mk^s. A logit has no zero point, so that weights differing by class need log p_n in place
    of f_n; written as the mean of f_n plus what differs from it, this is the same up to a constant per sample.
    Probabilities are divided by their sum. For s = 0 it is the mean, bit for bit.
    """
    if not strength:
        return values.mean(0)
    weights = torch.softmax(strength * history.clamp(min=torch.finfo(history.dtype).tiny).log(), 0)
    apart = (weights - 1 / len(values))[:, None]
    if are_logits:
        return values.mean(0) + (apart * log_p).sum(0)
    mean = (values.mean(0) + (apart * values).sum(0)).clamp(min=0)
    return mean / mean.sum(-1, keepdim=True)


def aligned(values: Tensor, log_p: Tensor, history: Tensor, strength: float, *, are_logits: bool) -> Tensor:
    """The mean, with less of the classes that the clients name most on public data.  (N, B, K), ..., (N, K) -> (B, K)

    With h_k the mean over clients of their running share of class k: p_k / h_k^s of the mean of probabilities p,
    divided by its sum; f_k - s log h_k of the mean of logits. A class that few clients know drowns in the others'
    voices; this lifts it. It assumes that classes are about equally frequent in public data. For s = 0 it is the mean,
    bit for bit.
    """
    if not strength:
        return values.mean(0)
    offset = strength * history.mean(0).clamp(min=torch.finfo(history.dtype).tiny).log()
    if are_logits:
        return values.mean(0) - offset
    return torch.softmax(values.mean(0).clamp(min=torch.finfo(values.dtype).tiny).log() - offset, -1)


REMEMBERED: dict[RememberingRule, tuple[Remembered, Callable[..., Tensor]]] = {
    "debias": ("log-probabilities", debiased),
    "coverage": ("probabilities", covered),
    "align": ("probabilities", aligned),
}
"""rule -> what the server remembers the mean of, and the rule as a function of it."""


def remembering(
    f: Tensor,
    values: Tensor,
    clients: Sequence[str],
    history: ClassHistory,
    rule: RememberingRule,
    strength: float,
    temperature: float,
    sharpness: float | None,
) -> Tensor:
    """What `rule` makes of the logits f; `values` are f or its probabilities.  (N, B, K), (N, B, K) -> (B, K)

    Raised to the power `sharpness`, if there is one, as `aggregate = power` does with the plain mean.
    """
    are_logits = values is f
    log_p = torch.log_softmax(f if are_logits else f / temperature, -1)
    remembered, function = REMEMBERED[rule]
    means = history.with_batch(clients, log_p if remembered == "log-probabilities" else log_p.exp())
    value = function(values, log_p, means, strength, are_logits=are_logits)
    return value if sharpness is None else sharpened(value, "power", sharpness, are_logits=are_logits)
