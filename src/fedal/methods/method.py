"""A method's declaration: its two halves, the messages they send, and its requirements.

A method is two coroutines joined by a wire: the client's `round` yields uploads, the server's `round` yields replies.
Neither depends on how they are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Literal

from fedal.messages import NOT_BLACK_BOX, Leak, Message
from fedal.methods.client import ClientLogic
from fedal.methods.options import MethodOptions
from fedal.methods.server import ServerLogic

Need = Literal[
    "public",
    "features",
    "same-features",
    "weights",
    "same-architecture",
    "input-gradients",
    "weight-gradients",
    "server-model",
    "fixed-samples",
    "every-client",
]
"""What a method requires of a run: public data; learners that expose features (of one width), weights (of one
architecture) or gradients w.r.t. inputs or weights; a model at the server; samples that are never augmented, because
labels or outputs are kept for each of them; every client in every round (setting `participation`). Without that last
need, a client that sits out keeps its model, its optimizer and what its half keeps, and goes on from there."""


@dataclass(frozen=True)
class Method:
    """A method and its properties. `black_box` is computed from what it sends, never claimed."""

    name: str
    summary: str
    options: type[MethodOptions]
    client: type[ClientLogic]
    server: type[ServerLogic] = ServerLogic
    up: tuple[type[Message], ...] = ()
    down: tuple[type[Message], ...] = ()
    instead_of: Mapping[type[Message], type[Message]] = field(default_factory=dict)  # sent in place of, by an option
    needs: frozenset[Need] = frozenset()
    evaluates: Literal["clients", "server", "groups"] = "clients"
    faithfulness: Literal["paper", "paper+code", "code", "reconstruction", "own"] = "paper"
    paper_options: Mapping[str, Any] = field(default_factory=dict)  # the settings of preset `paper`
    per: Mapping[type[Message], Literal["iteration", "round", "run"]] = field(default_factory=dict)  # or iteration
    axes: Mapping[str, str] = field(default_factory=dict)  # extra axis of its messages -> the option with its length
    local_steps: Callable[[Any], int] = lambda options: int(options.tau)  # of a client per round, on private batches
    transfer_steps: Callable[[Any, int], int] | None = None  # of a client in round t, on anything else; see `steps`
    refuse: Callable[[Any, int], str | None] = lambda options, n_classes: None  # why they do not fit, if so

    def __post_init__(self) -> None:
        own = [message.__name__ for message in self.up if message.leak & Leak.SERVER_MODULE]
        if own:
            raise TypeError(f"{self.name}: clients upload {', '.join(own)}, so it is not a module of the server alone")

    def steps(self, options: Any, rounds: int) -> int:
        """Optimizer steps that a client takes in this many rounds: what tables show, for a fair comparison.

        Unless declared, the transfer takes tau steps per round with public data and none without.
        """
        transfer = self.transfer_steps or (lambda options, t: options.tau if "public" in self.needs else 0)
        return rounds * self.local_steps(options) + sum(transfer(options, t) for t in range(rounds))

    @property
    def exchanges(self) -> bool:
        """Whether clients and server exchange any messages."""
        return bool(self.up or self.down)

    @property
    def least_clients(self) -> int:
        """The smallest number of clients with which a round makes sense."""
        return 2 if self.exchanges else 1

    @property
    def sends(self) -> Leak:
        """What the messages of a client reveal together."""
        return reduce(or_, (message.leak for message in self.up), Leak.NOTHING)

    @property
    def receives(self) -> Leak:
        """What the messages of the server reveal together."""
        return reduce(or_, (message.leak for message in self.down), Leak.NOTHING)

    @property
    def reveals(self) -> Leak:
        """Everything that its messages reveal together."""
        return self.sends | self.receives

    @property
    def black_box(self) -> bool:
        """Whether no parameters, nothing else that was trained on private data, and no architecture leave a client."""
        return not self.reveals & NOT_BLACK_BOX
