"""The messages that may cross the wire; nothing else may.

A message is a frozen dataclass of tensors. Its `layout` names the axes of each tensor, so that the wire can check it
before use; its `ranges` and `misfit` state what its integers may be and how its fields belong together; its `leak`
states what it reveals. Plain integers, such as how many clients responded, travel in the header and are not payload.

Axes: B samples of the public batch, B-1 the other samples of that batch, K classes, d the width of the features, x the
elements of one input, C an option of the method (`Method.axes`), * any length.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

from fedal.lazy import Tensor, torch

LARGEST = 1e6  # limit for values from a network: far above any realistic logit, far below overflow of a sum
MAX_SAMPLES = 2**53 - 1  # the largest count that a double holds exactly
MAX_CLIENTS = 2**31 - 1


class Range(NamedTuple):
    """The values of an integer: `low` <= value <= `high`; a named axis stands for its last index."""

    low: int
    high: int | str


class Misfit(NamedTuple):
    """What is wrong with the content of a message: the field, what was found and what was expected."""

    field: str
    text: str


class Leak(enum.Flag):
    """What a message reveals about its sender. Types bound the channel, not the information in it."""

    NOTHING = 0
    PUBLIC_OUTPUTS = enum.auto()  # a model's outputs on public samples
    OUTPUT_GRADIENTS = enum.auto()  # the gradients that the server sends w.r.t. those outputs
    FEATURE_GEOMETRY = enum.auto()  # similarities of public samples in a model's feature space
    PUBLIC_FEATURES = enum.auto()  # the vector before the last layer, on public samples
    CLASS_FEATURES = enum.auto()  # mean features of private samples per class
    CLASS_OUTPUTS = enum.auto()  # mean outputs on private samples per class
    LABEL_COUNTS = enum.auto()  # the number of private samples of each class
    CLASS_INPUTS = enum.auto()  # mean private inputs per class: blurred data
    PRIVATE_OUTPUTS = enum.auto()  # a model's outputs on individual private samples
    PRIVATE_FEATURES = enum.auto()  # features of individual private samples
    PRIVATE_LABELS = enum.auto()  # labels of individual private samples
    PARAMETERS = enum.auto()  # the model itself
    ARCHITECTURE = enum.auto()  # its shape


NOT_BLACK_BOX = Leak.PARAMETERS | Leak.ARCHITECTURE
OUTPUTS_ONLY = Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS

LEAK_WORDS = {
    Leak.PUBLIC_OUTPUTS: "outputs on public data",
    Leak.OUTPUT_GRADIENTS: "gradients w.r.t. those outputs",
    Leak.FEATURE_GEOMETRY: "similarities of public samples",
    Leak.PUBLIC_FEATURES: "features of public data",
    Leak.CLASS_FEATURES: "mean features per class",
    Leak.CLASS_OUTPUTS: "mean outputs per class",
    Leak.LABEL_COUNTS: "label counts",
    Leak.CLASS_INPUTS: "mean inputs per class",
    Leak.PRIVATE_OUTPUTS: "outputs on private samples",
    Leak.PRIVATE_FEATURES: "features of private samples",
    Leak.PRIVATE_LABELS: "labels of private samples",
    Leak.PARAMETERS: "model parameters",
    Leak.ARCHITECTURE: "model architecture",
}


def in_words(leak: Leak) -> str:
    """`outputs on public data, gradients w.r.t. those outputs`; `nothing` for no leak."""
    return ", ".join(words for flag, words in LEAK_WORDS.items() if flag in leak) or "nothing"


@dataclass(frozen=True)
class Message:
    """The base of all messages: `layout` maps each tensor field to the names of its axes."""

    leak: ClassVar[Leak] = Leak.NOTHING
    layout: ClassVar[dict[str, tuple[str, ...]]] = {}
    integer_fields: ClassVar[dict[str, str]] = {}  # integer field -> its torch dtype
    ranges: ClassVar[dict[str, Range]] = {}  # integer field -> its values; every header field has a range
    about_batch: ClassVar[bool] = True  # whether it concerns the public batch of the exchange
    size: ClassVar[str] = ""  # its size as text, where it does not follow from the layout

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not any("leak" in vars(kind) for kind in cls.__mro__ if kind is not Message):
            raise TypeError(f"{cls.__name__} does not declare what it reveals: set `leak = Leak...`")

    def tensors(self) -> dict[str, Tensor]:
        """The payload tensors, by name."""
        return {name: getattr(self, name) for name in self.layout}

    @classmethod
    def payload_fields(cls) -> tuple[str, ...]:
        """The fields that hold tensors; all others are plain integers in the header."""
        return tuple(cls.layout)

    @classmethod
    @cache
    def header_fields(cls) -> tuple[str, ...]:
        """The fields that hold plain integers."""
        return tuple(field.name for field in fields(cls) if field.name not in cls.payload_fields())

    def axes_of(self, name: str) -> tuple[str, ...] | None:
        """The axis names of one of `tensors()`; None if any shape is allowed."""
        return self.layout[name]

    def misfit(self) -> Misfit | None:
        """How the fields contradict each other, if they do. Called when shapes, dtypes and ranges are right."""
        return None

    def with_tensors(self, tensors: dict[str, Tensor]) -> Message:
        """A copy of the message with other tensors, for its receiver."""
        return replace(self, **tensors)

    def split(self, size: int) -> list[Message]:
        """The messages of the individual clients of a stack."""
        return [
            self.with_tensors({name: tensor[index] for name, tensor in self.tensors().items()}) for index in range(size)
        ]

    @staticmethod
    def join(messages: Sequence[Message]) -> Message:
        """One message to a stack of clients, with a leading client axis on every tensor."""
        first = messages[0]
        return first.with_tensors(
            {name: torch.stack([message.tensors()[name] for message in messages]) for name in first.tensors()}
        )


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
        lowest, wrong = float(self.values.min()), float((self.values.sum(-1) - 1).abs().max())
        if lowest >= 0 and wrong <= OFF_THE_SIMPLEX:
            return None
        return Misfit("values", f"has a row that is not a distribution: lowest value {lowest:g}, sum off by {wrong:g}")


OFF_THE_SIMPLEX = 1e-4  # rounding of a sum over thousands of classes


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


@dataclass(frozen=True)
class PublicFeatures(Message):
    """The vectors before the last layer on the public batch: 4 * B * d bytes."""

    values: Tensor

    leak = Leak.PUBLIC_FEATURES
    layout = {"values": ("B", "d")}  # noqa: RUF012


@dataclass(frozen=True)
class FeatureConsensus(Message):
    """The mean features over the `count` clients that responded: 4 * B * d bytes."""

    mean: Tensor
    count: int

    leak = Leak.PUBLIC_FEATURES
    layout = {"mean": ("B", "d")}  # noqa: RUF012
    ranges = {"count": Range(1, MAX_CLIENTS)}  # noqa: RUF012


@dataclass(frozen=True)
class ClassFeatures(Message):
    """Mean features of the K_n classes that a client has seen, in class order, and the sample count of every class:
    4 * K_n * d + 4 * K bytes."""

    rows: Tensor
    counts: Tensor

    leak = Leak.CLASS_FEATURES | Leak.LABEL_COUNTS
    layout = {"rows": ("*", "d"), "counts": ("K",)}  # noqa: RUF012
    integer_fields = {"counts": "int32"}  # noqa: RUF012
    ranges = {"counts": Range(0, 2**31 - 1)}  # noqa: RUF012
    about_batch = False
    size = "4·K_n·d + 4·K B"

    def misfit(self) -> Misfit | None:
        seen = int((self.counts > 0).sum())
        return None if seen == len(self.rows) else Misfit("rows", f"has {len(self.rows)} rows for {seen} classes")


@dataclass(frozen=True)
class Prototypes(Message):
    """The mean features of every class over the clients; zeros for a class that no client has: 4 * K * d bytes."""

    rows: Tensor

    leak = Leak.CLASS_FEATURES
    layout = {"rows": ("K", "d")}  # noqa: RUF012
    about_batch = False


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
    """Probabilities on the mean input of each class, or their mean over the other clients: 4 * K * K bytes."""

    values: Tensor

    leak = Leak.CLASS_OUTPUTS
    layout = {"values": ("K", "K")}  # noqa: RUF012
    about_batch = False


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
class PrivateSamples(Message):
    """Features, logits and labels of a batch of private samples: 4 * B * (d + K + 1) bytes."""

    features: Tensor
    values: Tensor
    labels: Tensor

    leak = Leak.PRIVATE_FEATURES | Leak.PRIVATE_OUTPUTS | Leak.PRIVATE_LABELS
    layout = {"features": ("B", "d"), "values": ("B", "K"), "labels": ("B",)}  # noqa: RUF012
    integer_fields = {"labels": "int32"}  # noqa: RUF012
    ranges = {"labels": Range(0, "K")}  # noqa: RUF012
    about_batch = False


@dataclass(frozen=True)
class PrivateAnswers(Message):
    """The server's logits on the private batch that a client sent: 4 * B * K bytes."""

    values: Tensor

    leak = Leak.PRIVATE_OUTPUTS
    layout = {"values": ("B", "K")}  # noqa: RUF012
    about_batch = False


@dataclass(frozen=True)
class Weights(Message):
    """All parameters and buffers of a model, its number of training samples, and how many clients share it."""

    values: dict[str, Tensor]
    samples: int
    members: int = 1

    leak = Leak.PARAMETERS | Leak.ARCHITECTURE
    ranges = {"samples": Range(1, MAX_SAMPLES), "members": Range(1, MAX_CLIENTS)}  # noqa: RUF012
    about_batch = False
    size = "4·weights B"

    @classmethod
    def payload_fields(cls) -> tuple[str, ...]:
        return ("values",)

    def tensors(self) -> dict[str, Tensor]:
        return self.values

    def axes_of(self, name: str) -> None:
        return None

    def with_tensors(self, tensors: dict[str, Tensor]) -> Weights:
        return replace(self, values=tensors)
