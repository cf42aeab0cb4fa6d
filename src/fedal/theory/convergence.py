"""The left-hand side of Theorem (convergence): mean squared gradient norms over rounds, against 1 / sqrt(T tau)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedal.records.run import Run


@dataclass(frozen=True)
class Convergence:
    """One entry per measured round T. `average` is the running mean up to T of the step-size-weighted sum of norms."""

    rounds: list[int]
    clients: list[float]  # mean over clients of ||grad V_n||^2
    discriminator: list[float]  # ||grad U||^2; 0 without a discriminator
    average: list[float]
    reference: list[float]  # c / sqrt(T tau), through the first point of `average`


def convergence(run: Run, latest: Mapping[str, Any]) -> Convergence:
    """The norms recorded by the instrument `gradients`; without it, only those of the latest round."""
    config = run.config
    recorded = [row for row in run.metrics if "client_gradient" in row]
    rows: list[Mapping[str, Any]] = [*recorded] or ([latest] if "client_gradient" in latest else [])
    clients = [float(row["client_gradient"]) for row in rows]
    discriminator = [float(row.get("discriminator_gradient", 0.0)) for row in rows]
    rounds = [int(row["round"]) for row in rows]
    lr_d = getattr(config.options, "discriminator_lr", 0.0)
    average = averaged_norms(clients, discriminator, len(config.client_names), config.lr, lr_d)
    return Convergence(rounds, clients, discriminator, average, reference_line(rounds, average, config.tau))


def averaged_norms(
    clients: Sequence[float], discriminator: Sequence[float], n_clients: int, lr: float, discriminator_lr: float
) -> list[float]:
    """(1/S) sum_t (sum_n eta_l ||grad V_n||^2 + eta_d ||grad U||^2), Eq. (convergence-error), for every T."""
    share = n_clients * lr + discriminator_lr
    each = [(n_clients * lr * c + discriminator_lr * d) / share for c, d in zip(clients, discriminator, strict=True)]
    return [sum(each[: t + 1]) / (t + 1) for t in range(len(each))]


def reference_line(rounds: Sequence[int], average: Sequence[float], tau: int) -> list[float]:
    if not rounds:
        return []
    scale = average[0] * math.sqrt(rounds[0] * tau)
    return [scale / math.sqrt(t * tau) for t in rounds]
