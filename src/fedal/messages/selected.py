"""Outputs and labels of chosen public samples: coded, cached, weighted, or of the whole public set at once."""

from __future__ import annotations

from dataclasses import dataclass

from fedal.lazy import Tensor
from fedal.messages.base import MAX_CLIENTS, Leak, Message, Misfit, Range
from fedal.messages.outputs import Outputs, no_distribution


@dataclass(frozen=True)
class Codes(Message):
    """Soft labels of the public batch as the bytes of `fedal.quantise`; the meter counts the bytes as written.

    `begins` is 1 in an upload that makes the server discard all earlier codes, in both directions.
    """

    packed: Tensor
    begins: int = 0

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"packed": ("*",)}  # noqa: RUF012
    integer_fields = {"packed": "uint8"}  # noqa: RUF012
    ranges = {"packed": Range(0, 255), "begins": Range(0, 1)}  # noqa: RUF012
    size = "4 to 20 B"  # delta coding, one bit: a change bit per sample, ceil(log2 K) more for each change


@dataclass(frozen=True)
class NewOutputs(Message):
    """Logits on those samples of the public batch for which the sender holds no label: 4 * K bytes for each of them.

    `begins` is 1 in an upload that says that the sender holds no labels at all.
    """

    values: Tensor
    begins: int = 0

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("*", "K")}  # noqa: RUF012
    ranges = {"begins": Range(0, 1)}  # noqa: RUF012
    size = "0 to 1,280 B"  # at B = 32, K = 10


@dataclass(frozen=True)
class NewLabels(Message):
    """Class probabilities for the samples that the client sent, and the age of each label in rounds: 4 * K + 1 bytes
    for each of them."""

    values: Tensor
    ages: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("*", "K"), "ages": ("*",)}  # noqa: RUF012
    integer_fields = {"ages": "uint8"}  # noqa: RUF012
    ranges = {"ages": Range(0, 255)}  # noqa: RUF012
    size = "0 to 1,312 B"

    def misfit(self) -> Misfit | None:
        if len(self.ages) != len(self.values):
            return Misfit("ages", f"has {len(self.ages)} numbers for {len(self.values)} labels")
        return no_distribution(self.values)


@dataclass(frozen=True)
class SelectedOutputs(Message):
    """Logits on the public batch and whether the sender answers for each sample, else zeros: 4 * B * K + B bytes."""

    values: Tensor
    chosen: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.PRIVATE_DENSITY
    layout = {"values": ("B", "K"), "chosen": ("B",)}  # noqa: RUF012
    integer_fields = {"chosen": "uint8"}  # noqa: RUF012
    ranges = {"chosen": Range(0, 1)}  # noqa: RUF012

    def misfit(self) -> Misfit | None:
        wrong = ((self.chosen == 0) & self.values.any(-1)).nonzero()
        return Misfit("values", f"has values in row {int(wrong[0])}, which is not chosen") if len(wrong) else None


@dataclass(frozen=True)
class SelectedTeacher(Message):
    """Class probabilities to learn from and how many clients made each row; 0 marks a row to skip, of zeros:
    4 * B * K + 4 * B bytes."""

    values: Tensor
    counts: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.PRIVATE_DENSITY
    layout = {"values": ("B", "K"), "counts": ("B",)}  # noqa: RUF012
    integer_fields = {"counts": "int32"}  # noqa: RUF012
    ranges = {"counts": Range(0, MAX_CLIENTS)}  # noqa: RUF012

    def misfit(self) -> Misfit | None:
        wrong = ((self.counts == 0) & self.values.any(-1)).nonzero()
        if len(wrong):
            return Misfit("values", f"has values in row {int(wrong[0])}, whose count is 0")
        return no_distribution(self.values[self.counts > 0])


@dataclass(frozen=True)
class WeightedOutputs(Outputs):
    """Logits on the public batch and the weight that the sender gives itself for each sample: 4 * B * (K + 1) bytes."""

    weights: Tensor

    leak = Leak.PUBLIC_OUTPUTS | Leak.PRIVATE_DENSITY
    layout = {**Outputs.layout, "weights": ("B",)}  # noqa: RUF012

    def misfit(self) -> Misfit | None:
        lowest = float(self.weights.min())
        return None if lowest >= 0 else Misfit("weights", f"holds {lowest:g}; expected 0 or more")


@dataclass(frozen=True)
class Votes(Message):
    """The class that each of s models of a client gives to every public sample: s * P bytes."""

    labels: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"labels": ("s", "*")}  # noqa: RUF012
    integer_fields = {"labels": "uint8"}  # noqa: RUF012
    ranges = {"labels": Range(0, "K")}  # noqa: RUF012
    about_batch = False
    size = "s·P B"


@dataclass(frozen=True)
class PublicLabels(Message):
    """One class for every public sample: P bytes."""

    labels: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"labels": ("*",)}  # noqa: RUF012
    integer_fields = {"labels": "uint8"}  # noqa: RUF012
    ranges = {"labels": Range(0, "K")}  # noqa: RUF012
    about_batch = False
    size = "P B"
