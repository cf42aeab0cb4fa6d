"""Numbers per class, from private samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedal.lazy import Tensor
from fedal.messages.base import Leak, Message, Misfit, Range
from fedal.messages.outputs import no_distribution


class _Counted:
    """A table with one row per class, and the number of samples or clients behind each row."""

    values: Tensor
    counts: Tensor

    integer_fields: ClassVar[dict[str, str]] = {"counts": "int32"}
    ranges: ClassVar[dict[str, Range]] = {"counts": Range(0, 2**31 - 1)}
    about_batch: ClassVar[bool] = False

    def misfit(self) -> Misfit | None:
        wrong = ((self.counts == 0) & self.values.any(-1)).nonzero()
        return Misfit("values", f"has values in row {int(wrong[0])}, whose count is 0") if len(wrong) else None


@dataclass(frozen=True)
class ClassOutputs(_Counted, Message):
    """Mean probabilities per class, row l over samples of label l, and the number of samples (up) or other clients
    (down) behind each row; 0 marks an empty row: 4 * K * K + 4 * K bytes."""

    values: Tensor
    counts: Tensor

    leak = Leak.CLASS_OUTPUTS | Leak.LABEL_COUNTS
    layout = {"values": ("K", "K"), "counts": ("K",)}  # noqa: RUF012

    def misfit(self) -> Misfit | None:
        return super().misfit() or no_distribution(self.values[self.counts > 0])


@dataclass(frozen=True)
class ClassLogits(_Counted, Message):
    """Mean logits per class, and the number of samples (up) or clients (down) behind each row; 0 marks an empty row:
    4 * K * K + 4 * K bytes."""

    values: Tensor
    counts: Tensor

    leak = Leak.CLASS_OUTPUTS | Leak.LABEL_COUNTS
    layout = {"values": ("K", "K"), "counts": ("K",)}  # noqa: RUF012


@dataclass(frozen=True)
class ClassInputs(_Counted, Message):
    """Mean inputs per class, and the number of samples (up) or other clients (down) behind each row; 0 marks an
    empty row: 4 * K * x + 4 * K bytes."""

    values: Tensor
    counts: Tensor

    leak = Leak.CLASS_INPUTS | Leak.LABEL_COUNTS
    layout = {"values": ("K", "x"), "counts": ("K",)}  # noqa: RUF012


@dataclass(frozen=True)
class MeanInputOutputs(Message):
    """Probabilities on the mean input of each class, or their mean over the other clients; zeros for a class without
    one: 4 * K * K bytes."""

    values: Tensor

    leak = Leak.CLASS_OUTPUTS
    layout = {"values": ("K", "K")}  # noqa: RUF012
    about_batch = False

    def misfit(self) -> Misfit | None:
        return no_distribution(self.values[self.values.any(-1)])


@dataclass(frozen=True)
class LabelCounts(Message):
    """The number of samples of each class at a client (up) or at all clients that responded (down): 4 * K bytes."""

    counts: Tensor

    leak = Leak.LABEL_COUNTS
    layout = {"counts": ("K",)}  # noqa: RUF012
    integer_fields = {"counts": "int32"}  # noqa: RUF012
    ranges = {"counts": Range(0, 2**31 - 1)}  # noqa: RUF012
    about_batch = False


@dataclass(frozen=True)
class Confusion(Message):
    """How many private samples of each class (row) a model takes for each class (column): 4 * K * K bytes."""

    counts: Tensor

    leak = Leak.CLASS_OUTPUTS | Leak.LABEL_COUNTS
    layout = {"counts": ("K", "K")}  # noqa: RUF012
    integer_fields = {"counts": "int32"}  # noqa: RUF012
    ranges = {"counts": Range(0, 2**31 - 1)}  # noqa: RUF012
    about_batch = False


@dataclass(frozen=True)
class Credibility(Message):
    """How far a model can be trusted with each class, from the sum of all clients' `Confusion`: 4 * K bytes."""

    values: Tensor

    leak = Leak.CLASS_OUTPUTS
    layout = {"values": ("K",)}  # noqa: RUF012
    about_batch = False


@dataclass(frozen=True)
class SeenLabels(Message):
    """How many samples of each class the server's model has learned from, a part of all clients': 4 * K bytes."""

    values: Tensor

    leak = Leak.LABEL_COUNTS
    layout = {"values": ("K",)}  # noqa: RUF012
    about_batch = False
