"""The two halves of a method and its declaration.

A method is two coroutines joined by a wire. A client's `round` yields what it uploads and receives what comes down; the
server's `round` receives all uploads and yields the replies. Nothing here knows how they are run.

What must survive a round is in `state_dict()`; what belongs to a round is a local variable of that round. No
`torch.no_grad()` block may span a `yield`: that mode belongs to the thread, and another thread may resume.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedal.errors import NonFiniteError
from fedal.lazy import torch
from fedal.losses import class_prior, d_cross_entropy, d_kl
from fedal.messages import NOT_BLACK_BOX, Leak, Message

if TYPE_CHECKING:
    from torch import Tensor

    from fedal.data.streams import PrivateData, PublicData
    from fedal.learners.base import Learner, Mode, State

ClientRound = Generator[Message, Any, None]
"""Yields an upload, receives the reply to it."""

Uploads = Mapping[str, Any]
"""client id -> message, for those who answered."""

Replies = dict[str, Message]
"""client id -> message."""

ServerRound = Generator[Replies | None, Uploads, Replies | None]
"""Yields the reply to the previous uploads (None at first), receives the next ones, returns the last reply."""


class MethodOptions(BaseModel):
    """Options of every method with local training. A loss weight of 0 drops its term."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tau: int = Field(5, ge=1, description="iterations in each local training and each knowledge transfer stage")
    local_loss: Literal["cross-entropy", "balanced"] = Field(
        "cross-entropy",
        description="balanced: cross-entropy on f + log(pi_n), pi_n the client's own label frequencies (never sent)",
    )
    prior_smoothing: float = Field(1.0, gt=0, description="pseudo-samples per class in pi_n of local_loss=balanced")


class TransferOptions(MethodOptions):
    """Options of every method that learns from others on public data."""

    temperature: float = Field(1.0, gt=0, description="temperature E inside every KL divergence")
    public_mode: Literal["train", "eval", "frozen"] = Field(
        "train", description="what BatchNorm does on public batches (see docs/methods)"
    )


@dataclass(frozen=True)
class ClientSetup:
    """All that a client's half is given."""

    client_id: str
    learner: Learner
    private: PrivateData
    public: PublicData | None
    options: MethodOptions
    phase_done: Callable[[str], None] = lambda phase: None


class ClientLogic:
    """The client's half: owns a learner and private data, decides what it uploads."""

    def __init__(self, setup: ClientSetup) -> None:
        self.client_id = setup.client_id
        self.learner = setup.learner
        self.private = setup.private
        self.hp: Any = setup.options
        self._public = setup.public
        self._phase_done = setup.phase_done
        self._log_prior: Tensor | None = None
        if self.hp.local_loss == "balanced":
            self._log_prior = class_prior(self.private.label_counts, self.hp.prior_smoothing)

    @property
    def public(self) -> PublicData:
        if self._public is None:
            raise RuntimeError(f"{type(self).__name__} uses public data without declaring that it needs them")
        return self._public

    def round(self, t: int) -> ClientRound:
        """One round: train, yield uploads, receive replies."""
        raise NotImplementedError(f"{type(self).__name__} must define round(t)")

    def state_dict(self) -> State:
        """What the method keeps between rounds besides the learner."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Takes back what `state_dict` gave."""

    # the vocabulary of method files

    def local_training(self, t: int, keep: float = 0.0) -> None:
        """tau steps on V^loc = l(y, f) + keep * r^loc, Eq. (client_loss_loc)."""
        anchor = self.anchor(keep)  # theta^{t,0}
        for i in range(self.hp.tau):
            x, y = self.private.batch(t, i)
            f = self.learner.logits(x)
            biased = f if self._log_prior is None else f + self._log_prior.to(f.dtype)
            self.step(cross_entropy=d_cross_entropy(biased, y), keep_local=anchor.pull(x, f))
        self._phase_done("after_local")

    def public_passes(self, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau public batches of round t, the same at every client, with the logits of a pending pass on each."""
        for i in range(self.hp.tau):
            x = self.public.batch(t, i)
            yield x, self.learner.logits(x, self.hp.public_mode)

    def anchor(self, weight: float, mode: Mode = "train") -> Anchor:
        """The present self as a reference for the coming stage of tau steps."""
        return Anchor(self.learner, weight, getattr(self.hp, "temperature", 1.0), self.hp.tau, mode)

    def step(self, **gradients: Tensor | None) -> None:
        """One optimizer step along the sum of the named terms' gradients in the pending pass; None drops a term."""
        terms = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        total = reduce(torch.add, terms.values())
        if not torch.isfinite(total).all():
            guilty = [name for name, gradient in terms.items() if not torch.isfinite(gradient).all()]
            raise NonFiniteError(
                f"the gradient of {' and of '.join(guilty) or 'the sum of all terms'} is not finite. "
                "A smaller lr usually helps; a loss weight or the input data may be too large."
            )
        self.learner.learn(total)


class Anchor:
    """Less-forgetting: weight * KL(p(theta at the start of the stage) || p(theta)), r^loc and r^glo of the paper.

    At the first step of a stage the student is the anchor, so the gradient is exactly zero and the pass is skipped.
    """

    skip_first = True

    def __init__(self, learner: Learner, weight: float, temperature: float, tau: int, mode: Mode) -> None:
        self._weight, self._temperature = weight, temperature
        self._past = learner.frozen(mode) if weight and (tau > 1 or not self.skip_first) else None
        self._moved = not self.skip_first

    def pull(self, x: Tensor, f: Tensor) -> Tensor | None:
        """The gradient of the term in the logits f on batch x; None where it is zero by construction."""
        if self._past is None or not self._moved:
            self._moved = True
            return None
        return weighted(self._weight, d_kl(self._past(x), f, self._temperature))


def weighted(weight: float, gradient: Tensor) -> Tensor | None:
    """weight * gradient; a weight of 0 drops the term, because 0 * inf is nan."""
    return weight * gradient if weight else None


@dataclass(frozen=True)
class ServerSetup:
    """All that the server's half is given: no data, no model of a client."""

    roster: tuple[str, ...]
    n_classes: int
    options: MethodOptions
    seed: int
    dtype: torch.dtype
    public_digest: Callable[[int, int], str] | None = None


class ServerLogic:
    """The server's half: sees ids and messages, nothing else. As it stands: a server that is never asked."""

    def __init__(self, setup: ServerSetup) -> None:
        self.hp: Any = setup.options
        self._public_digest = setup.public_digest
        self.observed: dict[str, Tensor] = {}  # numbers about the last round, for the record; made anew every round

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        """One round over the clients that take part, in roster order."""
        yield from ()
        return None

    def expected_batch(self, t: int, i: int) -> str | None:
        """The digest of the public batch that exchange i of round t is about; None when it is about no batch."""
        return self._public_digest(t, i) if self._public_digest else None

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Takes back what `state_dict` gave."""


def stack_outputs(clients: Sequence[str], up: Uploads) -> tuple[list[str], Tensor]:
    """Who answered, and their logits in roster order: arrival order must not matter.  -> (N, B, K)"""
    present = [client_id for client_id in clients if client_id in up]
    return present, torch.stack([up[client_id].values for client_id in present])


@dataclass(frozen=True)
class Method:
    """What a method declares about itself. `black_box` is computed from what it sends, never claimed."""

    name: str
    summary: str
    options: type[MethodOptions]
    client: type[ClientLogic]
    server: type[ServerLogic] = ServerLogic
    up: tuple[type[Message], ...] = ()
    down: tuple[type[Message], ...] = ()
    needs: frozenset[Literal["public", "features", "weights"]] = frozenset()
    evaluates: Literal["clients", "server", "groups"] = "clients"
    faithfulness: Literal["paper", "paper+code", "code", "reconstruction"] = "paper"
    paper_options: Mapping[str, Any] = field(default_factory=dict)  # what preset `paper` sets

    @property
    def exchanges(self) -> bool:
        return bool(self.up or self.down)

    @property
    def reveals(self) -> Leak:
        """All that its messages together tell."""
        return reduce(or_, (message.leak for message in self.up + self.down), Leak.NOTHING)

    @property
    def black_box(self) -> bool:
        """Neither parameters nor architecture of a client's model leave the client."""
        return not self.reveals & NOT_BLACK_BOX
