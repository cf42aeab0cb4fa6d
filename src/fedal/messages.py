"""What may cross the wire, and nothing else.

A message is a frozen dataclass of tensors. Its `layout` names the axes of each tensor (B samples of the public batch,
K classes), so that the wire can check it before anybody uses it; its `leak` says what it reveals. Plain integers
(how many clients spoke) travel in the header and are not payload.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


class Leak(enum.Flag):
    """What a message tells its reader about the sender. Types bound the channel, not the information in it."""

    NOTHING = 0
    PUBLIC_OUTPUTS = enum.auto()  # what a model answers on public samples
    OUTPUT_GRADIENTS = enum.auto()  # how the server would like those answers to change
    PARAMETERS = enum.auto()  # the model itself
    ARCHITECTURE = enum.auto()  # its shape


NOT_BLACK_BOX = Leak.PARAMETERS | Leak.ARCHITECTURE

LEAK_WORDS = {
    Leak.PUBLIC_OUTPUTS: "outputs on public data",
    Leak.OUTPUT_GRADIENTS: "gradients in those outputs",
    Leak.PARAMETERS: "model parameters",
    Leak.ARCHITECTURE: "model architecture",
}


def in_words(leak: Leak) -> str:
    """`outputs on public data, gradients in those outputs`; `nothing` for no leak."""
    return ", ".join(words for flag, words in LEAK_WORDS.items() if flag in leak) or "nothing"


@dataclass(frozen=True)
class Message:
    """The base of all messages: `layout` maps each tensor field to the names of its axes."""

    leak: ClassVar[Leak] = Leak.NOTHING
    layout: ClassVar[dict[str, tuple[str, ...]]] = {}

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.layout}


@dataclass(frozen=True)
class Outputs(Message):
    """A client's logits on the public batch, line `upload` of Algorithm 1: 4 * B * K bytes."""

    values: Tensor

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("B", "K")}  # noqa: RUF012 - a ClassVar in the base


@dataclass(frozen=True)
class Consensus(Message):
    """The mean logits over the `count` clients who spoke: 4 * B * K bytes."""

    mean: Tensor
    count: int

    leak = Leak.PUBLIC_OUTPUTS
    layout = {"mean": ("B", "K")}  # noqa: RUF012


@dataclass(frozen=True)
class Guidance(Message):
    """Mean logits and dU_n/df_n per sample, line `download` of Algorithm 1: 8 * B * K bytes."""

    mean: Tensor
    grad: Tensor
    count: int

    leak = Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS
    layout = {"mean": ("B", "K"), "grad": ("B", "K")}  # noqa: RUF012
