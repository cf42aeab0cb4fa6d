"""The studies of several runs side by side, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from fedal.analysis.study import SIGMAS, Study

Cell = Callable[[Study], str]


def rows(studies: Sequence[Study]) -> list[list[str]]:
    """One row per quantity, one column per run; a dash where a run has no such thing."""
    table = [[name, *(cell(study) for study in studies)] for name, cell in _quantities().items()]
    return [row for row in table if set(row[1:]) != {"-"}]


def _quantities() -> dict[str, Cell]:
    quantities: dict[str, Cell] = {
        "disagreement ζ: mean, largest client": lambda s: (
            f"{fmean(t.zeta for t in s.terms.values()):.4f}, {s.equilibrium.largest_zeta:.4f}"
        ),
        "distance d(P, D_n): mean, largest": lambda s: _mean_and_largest([t.public_distance for t in s.terms.values()]),
        "distance d(D, D_n): mean, largest": lambda s: _mean_and_largest([t.global_distance for t in s.terms.values()]),
        "joint loss λ: mean": lambda s: _number(_mean_joint_loss(s)),
        "loss on own data": lambda s: f"{s.bounds['FedAL'].risk:.3f}",
        "loss on global data, measured": lambda s: f"{s.global_loss:.3f}",
        "  FedAL's bound without sampling term": lambda s: f"{s.bounds['FedAL'].total:.3f}",
        "  FedMD's bound without sampling term": lambda s: f"{s.bounds['FedMD'].total:.3f}",
        "  sampling term of both": lambda s: f"{s.bounds['FedAL'].sampling:.1f}",
    }
    for name in SIGMAS:
        quantities[f"gradient variance σ²_{name}: mean, largest"] = _variance(name)
    quantities |= {
        "clients' squared gradient norm": lambda s: _last(s.convergence.clients),
        "discriminator's squared gradient norm": lambda s: _last([d for d in s.convergence.discriminator if d]),
        "outputs placed differently: mean, largest pair": lambda s: (
            f"{s.equilibrium.mean_distance:.3f}, {s.equilibrium.largest_distance:.3f}"
        ),
        "public samples on which all name one class": lambda s: f"{s.equilibrium.agreement:.1%}",
        "discriminator's accuracy (chance 1/N)": lambda s: (
            "-" if s.equilibrium.discriminator is None else _guess(s, s.equilibrium.discriminator)
        ),
        "a fresh discriminator's accuracy": lambda s: _guess(s, s.equilibrium.fresh),
        "local training: accuracy on global data": _change("global_before_local", "global_after_local"),
        "transfer: accuracy on own data": _change("own_before_transfer", "own_after_transfer"),
    }
    return quantities


def _variance(name: str) -> Cell:
    return lambda s: _mean_and_largest(list(s.variances[name].values())) if name in s.variances else "-"


def _change(before: str, after: str) -> Cell:
    return lambda s: f"{s.forgetting[before]:.3f} → {s.forgetting[after]:.3f}" if before in s.forgetting else "-"


def _guess(study: Study, accuracy: float) -> str:
    return f"{accuracy:.3f} ({study.equilibrium.chance:.3f} ± {study.equilibrium.margin:.3f})"


def _mean_joint_loss(study: Study) -> float | None:
    known = [t.joint_loss for t in study.terms.values() if t.joint_loss is not None]
    return fmean(known) if known else None


def _mean_and_largest(values: Sequence[float]) -> str:
    return f"{fmean(values):.3g}, {max(values):.3g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _last(values: Sequence[float]) -> str:
    return f"{values[-1]:.3g}" if values else "-"
