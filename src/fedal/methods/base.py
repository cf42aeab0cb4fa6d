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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from fedal.errors import NonFiniteError
from fedal.facts import Facts
from fedal.finite import is_finite
from fedal.lazy import torch
from fedal.losses import class_prior, d_cross_entropy, d_kl
from fedal.messages import NOT_BLACK_BOX, Leak, Message

if TYPE_CHECKING:
    from torch import Tensor

    from fedal.data.streams import PrivateData, PrivateStack, PublicData
    from fedal.learners.base import FeatureLearner, Learner, Mode, State

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
    facts: ClassVar[Facts] = Facts(sites=True, changes="weights")  # of every option that does not say otherwise

    tau: int = Field(5, ge=1, description="iterations in each local training and each knowledge transfer stage")
    local_loss: Literal["cross-entropy", "balanced"] = Field(
        "cross-entropy",
        description="balanced: cross-entropy on f + log(pi_n), pi_n the client's own label frequencies (never sent)",
    )
    prior_smoothing: float = Field(1.0, gt=0, description="pseudo-samples per class in pi_n of local_loss=balanced")


class PublicOptions(MethodOptions):
    """Options of every method with passes on public data."""

    public_mode: Literal["train", "eval", "frozen"] = Field(
        "train", description="what BatchNorm does on public batches (see docs/methods)"
    )


class TransferOptions(PublicOptions):
    """Options of every method that learns from others' outputs on public data."""

    temperature: float = Field(1.0, gt=0, description="temperature E inside every KL divergence")


class PrivateOnlyOptions(MethodOptions):
    """Options of methods without steps on public data."""

    local_stages: int = Field(
        1, ge=1, le=2, description="2: as many steps per round as methods with a stage on public data, all on own data"
    )


@dataclass(frozen=True)
class ClientSetup:
    """All that a client's half is given."""

    client_id: str
    learner: Learner
    private: PrivateData | PrivateStack
    public: PublicData | None
    options: MethodOptions
    phase_done: Callable[[str], None] = lambda phase: None


class ClientLogic:
    """The client's half: owns a learner and private data, decides what it uploads."""

    def __init__(self, setup: ClientSetup) -> None:
        self.client_id = setup.client_id
        self.learner = setup.learner
        self.private = cast("PrivateData", setup.private)  # of a stack: the same with a client axis in front
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

    def hear(self, reply: Message | None) -> None:
        """Called with each reply before the coroutine gets it, and with None before it begins.

        All clients have heard before the first is waited for; one that is elsewhere is told in this way.
        """

    def state_dict(self) -> State:
        """What the method keeps between rounds besides the learner."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Takes back what `state_dict` gave, and keeps none of its tensors: they may be pages of a file."""

    # the vocabulary of method files

    def local_training(self, t: int, keep: float = 0.0) -> None:
        """tau steps on V^loc = l(y, f) + keep * r^loc, Eq. (client_loss_loc)."""
        anchor = self.anchor(keep)  # theta^{t,0}
        for x, y in self.private_batches(t):
            f = self.learner.logits(x)
            self.step(cross_entropy=self.d_supervised(f, y), keep_local=anchor.pull(x, f))

    def private_batches(self, t: int, stages: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau private batches of each of round t's stages, with labels: local training with further terms."""
        for stage in range(stages * t, stages * (t + 1)):
            for i in range(self.hp.tau):
                yield self.private.batch(stage, i)
        self._phase_done("after_local")

    def d_supervised(self, f: Tensor, y: Tensor) -> Tensor:
        """Gradient of l(y, f), the `local_loss` of the options, in the logits."""
        return d_cross_entropy(f if self._log_prior is None else f + self._log_prior.to(f.dtype), y)

    def public_passes(self, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau public batches of round t, the same at every client, with the logits of a pending pass on each."""
        for i in range(self.hp.tau):
            x = self.public.batch(t, i)
            yield x, self.learner.logits(x, self.hp.public_mode)

    def anchor(self, weight: float, mode: Mode = "train") -> Anchor:
        """The present self as a reference for the coming stage of tau steps."""
        return Anchor(self.learner, weight, getattr(self.hp, "temperature", 1.0), self.hp.tau, mode)

    def step(self, *passes: Mapping[str, Tensor], features: Tensor | None = None, **gradients: Tensor | None) -> None:
        """One optimizer step along the sum of the named terms' gradients in the pending pass; None drops a term.

        `features` is the gradient of a term in the features of that pass. Where several passes are pending, each has
        its own mapping of terms, in call order. Without any term there is nothing to learn: no step is taken.
        """
        named = [*passes] or [{name: gradient for name, gradient in gradients.items() if gradient is not None}]
        if features is None and not any(named):
            self.learner.forget()
            return
        totals = [reduce(torch.add, terms.values()) if terms else None for terms in named]
        if not all(is_finite(gradient) for gradient in (*totals, features) if gradient is not None):
            parts = [part for terms in named for part in terms.items()]
            parts += [("the features", features)] if features is not None else []
            guilty = [name for name, gradient in parts if not is_finite(gradient)]
            raise NonFiniteError(
                f"the gradient of {' and of '.join(guilty) or 'the sum of all terms'} is not finite. "
                "A smaller lr usually helps; a loss weight or the input data may be too large."
            )
        if features is None:
            self.learner.learn(*(total for total in totals if total is not None))
        else:
            cast("FeatureLearner", self.learner).learn(*totals, dfeatures=features)


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
        """The gradient of the term in the logits f on batch x; None when its weight is 0."""
        if self._past is None or not self._moved:
            self._moved = True
            return torch.zeros_like(f) if self._weight else None
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
    device: str = "cpu"
    public: PublicData | None = None
    make_learner: Callable[[str, tuple[int, ...] | None], Learner] | None = None  # of a server that owns models
    architectures: Mapping[str, str] = field(default_factory=dict)  # client -> model; only where weights are sent
    feature_width: int = 0  # d, where all clients must share it


class ServerLogic:
    """The server's half: sees ids and messages, nothing else. As it stands: a server that is never asked."""

    def __init__(self, setup: ServerSetup) -> None:
        self.hp: Any = setup.options
        self.public = setup.public
        self.learner: Learner | None = None  # the server's own model, if it has one: evaluated beside the clients
        self.observed: dict[str, Tensor] = {}  # numbers about the last round, for the record; made anew every round

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        """One round over the clients that take part, in roster order."""
        yield from ()
        return None

    def expected_batch(self, t: int, i: int) -> str | None:
        """The digest of the public batch that exchange i of round t is about; None when it is about no batch."""
        return self.public.digest(t, i) if self.public is not None and i < self.hp.tau else None

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Takes back what `state_dict` gave, and keeps none of its tensors: they may be pages of a file."""


def after(reply: Replies | None, stage: ServerRound) -> ServerRound:
    """Plays a stage of a round; its first question also delivers `reply`, the answer to uploads before it."""
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
    """Who answered, and their logits in roster order: arrival order must not matter.  -> (N, B, K)"""
    present = [client_id for client_id in clients if client_id in up]
    return present, torch.stack([up[client_id].values for client_id in present])


Need = Literal["public", "features", "same-features", "weights", "same-architecture", "server-model"]
"""What a method asks of the run: public data; learners that show features (of one width) or weights (of one
architecture); a model at the server."""


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
    needs: frozenset[Need] = frozenset()
    evaluates: Literal["clients", "server", "groups"] = "clients"
    faithfulness: Literal["paper", "paper+code", "code", "reconstruction"] = "paper"
    paper_options: Mapping[str, Any] = field(default_factory=dict)  # what preset `paper` sets
    per: Mapping[type[Message], Literal["iteration", "round", "run"]] = field(default_factory=dict)  # else iteration
    axes: Mapping[str, str] = field(default_factory=dict)  # further axes of its messages -> the option with the length
    local_steps: Callable[[Any], int] = lambda options: int(options.tau)  # private batches per round, for fairness
    refuse: Callable[[Any, int], str | None] = lambda options, n_classes: None  # why it does not fit, if it does not

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
