"""The analyses of several runs next to each other, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from fedal.analysis.analyse import SIGMAS, Analysis

Cell = Callable[[Analysis], str]


def _variance(name: str) -> Cell:
    return lambda s: _mean_and_largest([*s.variances.get(name, {}).values()])


def _change(before: str, after: str) -> Cell:
    return lambda s: f"{s.forgetting[before]:.3f} → {s.forgetting[after]:.3f}" if before in s.forgetting else "-"


def _guess(study: Analysis, accuracy: float | None) -> str:
    found = study.equilibrium
    return "-" if accuracy is None else f"{accuracy:.3f} ({found.chance:.3f} ± {found.margin:.3f})"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3f}" if known else "-"


def _mean_and_largest(values: Sequence[float]) -> str:
    return f"{fmean(values):.3g}, {max(values):.3g}" if values else "-"


def _last(values: Sequence[float]) -> str:
    return f"{values[-1]:.3g}" if values else "-"


QUANTITIES: dict[str, Cell] = {
    "disagreement ζ: mean, largest client": lambda s: (
        f"{fmean(t.zeta for t in s.terms.values()):.4f}, {s.equilibrium.largest_zeta:.4f}"
    ),
    "distance d(P, D_n): mean, largest": lambda s: _mean_and_largest([t.public_distance for t in s.terms.values()]),
    "distance d(D, D_n): mean, largest": lambda s: _mean_and_largest([t.global_distance for t in s.terms.values()]),
    "joint loss λ: mean": lambda s: _mean([t.joint_loss for t in s.terms.values()]),
    "loss on private data": lambda s: f"{s.bounds['FedAL'].risk:.3f}",
    "loss on global data, measured": lambda s: f"{s.global_loss:.3f}",
    "  FedAL's bound without sampling term": lambda s: f"{s.bounds['FedAL'].total:.3f}",
    "  FedMD's bound without sampling term": lambda s: f"{s.bounds['FedMD'].total:.3f}",
    "  sampling term of both": lambda s: f"{s.bounds['FedAL'].sampling:.1f}",
    **{f"gradient variance σ²_{name}: mean, largest": _variance(name) for name in SIGMAS},
    "clients' squared gradient norm": lambda s: _last(s.convergence.clients),
    "discriminator's squared gradient norm": lambda s: _last([d for d in s.convergence.discriminator if d]),
    "total variation of outputs: mean, largest pair": lambda s: (
        f"{s.equilibrium.mean_distance:.3f}, {s.equilibrium.largest_distance:.3f}"
    ),
    "public samples with one prediction by all": lambda s: f"{s.equilibrium.agreement:.1%}",
    "discriminator's accuracy (chance 1/N)": lambda s: _guess(s, s.equilibrium.discriminator),
    "a fresh discriminator's accuracy": lambda s: _guess(s, s.equilibrium.fresh),
    "bias: mean over clients": lambda s: f"{s.bottlenecks['test_bias']:.3f}",
    "accuracy of the ensemble": lambda s: f"{s.bottlenecks['test_ensemble_accuracy']:.3f}",
    "gap between the ensemble and its members": lambda s: f"{s.bottlenecks['test_gap']:+.3f}",
    "local training: accuracy on global data": _change("global_before_local", "global_after_local"),
    "transfer: accuracy on private data": _change("own_before_transfer", "own_after_transfer"),
}


def rows(studies: Sequence[Analysis]) -> list[list[str]]:
    """One row per quantity, one column per run; a dash if a run lacks the quantity."""
    table = [[name, *(cell(study) for study in studies)] for name, cell in QUANTITIES.items()]
    return [row for row in table if set(row[1:]) != {"-"}]
