"""The server's half of a method: a coroutine that receives all uploads and yields the replies.

`kept` names the attributes that must survive a round; everything else is a local variable of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fedal.data.streams import PublicData
from fedal.discriminator import ApplyToEach, in_turn
from fedal.lazy import Tensor, torch
from fedal.learners.base import Learner
from fedal.messages import Message, Together
from fedal.methods.kept import Keeper
from fedal.methods.options import MethodOptions
from fedal.sample_layout import BY_SAMPLE, SampleLayout

Uploads = Mapping[str, Any]
"""client id -> message, for the clients that responded."""

Replies = Mapping[str, Message]
"""client id -> message."""

ServerRound = Generator[Replies | None, Uploads, Replies | None]
"""Yields the reply to the previous uploads (None at first), receives the next uploads, returns the last reply."""


@dataclass(frozen=True)
class ServerSetup:
    """Everything that the server's half receives: no private data and no client's model."""

    roster: tuple[str, ...]
    n_classes: int
    options: MethodOptions
    seed: int
    dtype: torch.dtype
    device: str = "cpu"
    public: PublicData | None = None
    make_learner: Callable[[str, tuple[int, ...] | None], Learner] | None = None  # for servers that own models
    architectures: Mapping[str, str] = field(default_factory=dict)  # client -> model; only if weights are sent
    feature_width: int = 0  # d, if all clients must share it
    input_shape: tuple[int, ...] = ()  # of one sample
    partial: bool = False  # whether each round has a cohort; see the setting `participation`
    each: ApplyToEach = in_turn  # applies a function to many parts of a step; in a simulation, on its threads
    layout: SampleLayout = BY_SAMPLE  # in which it may compute: by column if the run may have other bits


class ServerLogic(Keeper):
    """The server's half: sees client ids and messages, nothing else. This base class exchanges nothing."""

    def __init__(self, setup: ServerSetup) -> None:
        self.hp: Any = setup.options
        self.device = setup.device
        self.dtype = setup.dtype
        self.public = setup.public
        self.learner: Learner | None = None  # the server's own model, if any; evaluated next to the clients
        self.observed: dict[str, Tensor | float] = {}  # numbers of this round, for the record; see records/observed.py

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        """Runs round t with `clients`: those that begin it, in roster order. Any of them may miss later exchanges."""
        yield from ()
        return None

    def expected_batch(self, t: int, i: int) -> str | None:
        """The digest of the public batch that exchange i of round t is about; None if it is about no batch."""
        return self.public.digest(t, i) if self.public is not None and i < self.hp.tau else None

    def refuse_unfit(self, client_id: str, message: Message, t: int, i: int) -> None:
        """Raises WireError if the upload does not fit what the server keeps about its sender; changes nothing.

        A deployed server asks before any upload of exchange i is used, so that only the sender suffers.
        """


def after(reply: Replies | None, stage: ServerRound) -> ServerRound:
    """Runs a stage of a round; its first request also delivers `reply`, the answer to the uploads before it."""
    try:
        next(stage)
    except StopIteration:
        return reply
    while True:
        up = yield reply
        try:
            reply = stage.send(up)
        except StopIteration as stop:
            return cast("Replies | None", stop.value)


def stack_outputs(clients: Sequence[str], up: Uploads) -> tuple[list[str], Tensor]:
    """The clients that responded and their logits, in roster order whatever the order of arrival.  -> (N, B, K)"""
    if isinstance(up, Together) and [*up] == [*clients]:
        return [*clients], up.joined.values.contiguous()  # type: ignore[attr-defined] # client by client, as stacked
    present = [client_id for client_id in clients if client_id in up]
    return present, torch.stack([up[client_id].values for client_id in present])
