"""What every message is: its layout, what its numbers may be, and what it reveals."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
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
    PARAMETER_STATISTICS = enum.auto()  # numbers per parameter from private samples, such as the Fisher information
    PRIVATE_MODULE = enum.auto()  # another module that a client trained on private samples, such as a decoder
    PRIVATE_DENSITY = enum.auto()  # how near public samples are to private ones: a sign of membership
    SERVER_MODULE = enum.auto()  # a module that only the server trained, from what it had received


NOT_BLACK_BOX = Leak.PARAMETERS | Leak.ARCHITECTURE | Leak.PARAMETER_STATISTICS | Leak.PRIVATE_MODULE
OUTPUTS_ONLY = Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS

LEAK_WORDS = {
    Leak.PUBLIC_OUTPUTS: "outputs on public data",
    Leak.OUTPUT_GRADIENTS: "gradients w.r.t. those outputs",
    Leak.FEATURE_GEOMETRY: "similarities of public samples",
    Leak.PUBLIC_FEATURES: "features of public data",
    Leak.CLASS_FEATURES: "mean features per class",
    Leak.CLASS_OUTPUTS: "mean outputs per class",
    Leak.LABEL_COUNTS: "label counts",
    Leak.PRIVATE_DENSITY: "nearness of public to private samples",
    Leak.CLASS_INPUTS: "mean inputs per class",
    Leak.PRIVATE_OUTPUTS: "outputs on private samples",
    Leak.PRIVATE_FEATURES: "features of private samples",
    Leak.PRIVATE_LABELS: "labels of private samples",
    Leak.PARAMETERS: "model parameters",
    Leak.ARCHITECTURE: "model architecture",
    Leak.PARAMETER_STATISTICS: "parameter statistics",
    Leak.PRIVATE_MODULE: "modules trained on private data",
    Leak.SERVER_MODULE: "modules of the server",
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
        other = object.__new__(type(self))  # a fifth of the time of `dataclasses.replace`
        vars(other).update(vars(self))
        vars(other).update(tensors)
        return other

    def split(self, size: int) -> list[Message]:
        """The messages of the individual clients of a stack."""
        parts = {name: tensor.unbind() for name, tensor in self.tensors().items()}
        return [self.with_tensors({name: each[index] for name, each in parts.items()}) for index in range(size)]

    @staticmethod
    def join(messages: Sequence[Message]) -> Message:
        """One message to a stack of clients, with a leading client axis on every tensor."""
        first, each = messages[0], [message.tensors() for message in messages]
        return first.with_tensors({name: torch.stack([tensors[name] for tensors in each]) for name in each[0]})
