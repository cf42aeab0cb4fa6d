"""Outputs on a public batch, and what is made of the outputs of all clients."""

from __future__ import annotations

from dataclasses import dataclass

from fedal.lazy import Tensor
from fedal.messages.base import MAX_CLIENTS, Leak, Message, Misfit, Range

OFF_THE_SIMPLEX = 1e-4  # rounding of a sum over thousands of classes


def no_distribution(rows: Tensor) -> Misfit | None:
    """What is wrong with `values` if one of these rows of it is not a distribution."""
    if not rows.numel():
        return None
    lowest, wrong = float(rows.min()), float((rows.sum(-1) - 1).abs().max())
    if lowest >= 0 and wrong <= OFF_THE_SIMPLEX:
        return None
    return Misfit("values", f"has a row that is not a distribution: lowest value {lowest:g}, sum off by {wrong:g}")


@dataclass(frozen=True)
class Outputs(Message):
    """A model's logits on the public batch, line `upload` of Algorithm 1: 4 * B * K bytes."""

    values: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("B", "K")}  # noqa: RUF012 - a ClassVar in the base


@dataclass(frozen=True)
class Consensus(Message):
    """The mean logits over the `count` clients that responded: 4 * B * K bytes."""

    mean: Tensor
    count: int

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"mean": ("B", "K")}  # noqa: RUF012
    ranges = {"count": Range(1, MAX_CLIENTS)}  # noqa: RUF012


@dataclass(frozen=True)
class Guidance(Message):
    """Mean logits and dU_n/df_n per sample, line `download` of Algorithm 1: 8 * B * K bytes."""

    mean: Tensor
    grad: Tensor
    count: int

    leak = Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS
    layout = {"mean": ("B", "K"), "grad": ("B", "K")}  # noqa: RUF012
    ranges = {"count": Range(1, MAX_CLIENTS)}  # noqa: RUF012


@dataclass(frozen=True)
class Teacher(Message):
    """Class probabilities to learn from on the public batch, one row per sample: 4 * B * K bytes."""

    values: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("B", "K")}  # noqa: RUF012

    def misfit(self) -> Misfit | None:
        return no_distribution(self.values)


@dataclass(frozen=True)
class GuidedOutputs(Outputs):
    """Logits to learn from and dU_n/df_n per sample: 8 * B * K bytes."""

    grad: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS
    layout = {**Outputs.layout, "grad": ("B", "K")}  # noqa: RUF012


@dataclass(frozen=True)
class GuidedTeacher(Teacher):
    """Class probabilities to learn from and dU_n/df_n per sample: 8 * B * K bytes."""

    grad: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS
    layout = {**Teacher.layout, "grad": ("B", "K")}  # noqa: RUF012


@dataclass(frozen=True)
class OutputsAndSimilarities(Outputs):
    """Logits on the public batch and the similarities between its samples: 4 * (B * K + B * (B - 1)) bytes."""

    similarities: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.FEATURE_GEOMETRY
    layout = {**Outputs.layout, "similarities": ("B", "B-1")}  # noqa: RUF012


@dataclass(frozen=True)
class ConsensusAndSimilarities(Consensus):
    """Mean logits and mean similarities over the `count` responding clients: 4 * (B * K + B * (B - 1)) bytes."""

    similarities: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.FEATURE_GEOMETRY
    layout = {**Consensus.layout, "similarities": ("B", "B-1")}  # noqa: RUF012


@dataclass(frozen=True)
class Centroids(Message):
    """The mean outputs of each of C groups of clients: 4 * C * B * K bytes.

    A group of one reveals that client's outputs.
    """

    values: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("C", "B", "K")}  # noqa: RUF012
