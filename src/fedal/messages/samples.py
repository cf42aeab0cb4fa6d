"""Numbers about single private samples."""

from __future__ import annotations

from dataclasses import dataclass

from fedal.lazy import Tensor
from fedal.messages.base import Leak, Message, Range


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
