"""All tensors of a module: a model, or what was trained next to one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedal.lazy import Tensor
from fedal.messages.base import MAX_CLIENTS, MAX_SAMPLES, Leak, Message, Range


class _OfAModule:
    """Tensors of any names and shapes, one for each part of a module. Only such messages may have free shapes."""

    values: dict[str, Tensor]

    about_batch: ClassVar[bool] = False

    @classmethod
    def payload_fields(cls) -> tuple[str, ...]:
        return ("values",)

    def tensors(self) -> dict[str, Tensor]:
        return self.values

    def axes_of(self, name: str) -> None:
        return None

    def with_tensors(self, tensors: dict[str, Tensor]) -> Any:
        return replace(self, values=tensors)  # type: ignore[type-var]


@dataclass(frozen=True)
class Weights(_OfAModule, Message):
    """All parameters and buffers of a model, its number of training samples, and how many clients share it."""

    values: dict[str, Tensor]
    samples: int
    members: int = 1

    leak = Leak.PARAMETERS | Leak.ARCHITECTURE
    ranges = {"samples": Range(1, MAX_SAMPLES), "members": Range(1, MAX_CLIENTS)}  # noqa: RUF012
    size = "4·weights B"


@dataclass(frozen=True)
class FisherTerms(_OfAModule, Message):
    """The diagonal u of the Fisher information and u * theta, per parameter, or their sums over the other clients.

    Where u is positive, theta is their quotient: these numbers give the parameters away.
    """

    values: dict[str, Tensor]

    leak = Leak.PARAMETER_STATISTICS | Leak.ARCHITECTURE
    size = "8·weights B"


@dataclass(frozen=True)
class DecoderWeights(_OfAModule, Message):
    """The decoder that a client trained on private samples: it makes samples like them. 4 bytes per value."""

    values: dict[str, Tensor]

    leak = Leak.PRIVATE_MODULE
    size = "4·decoder B"


@dataclass(frozen=True)
class ServerModule(_OfAModule, Message):
    """A module that only the server trained, such as its generator, by the names of its parts. 4 bytes per value."""

    values: dict[str, Tensor]

    leak = Leak.SERVER_MODULE
    size = "4·module B"
