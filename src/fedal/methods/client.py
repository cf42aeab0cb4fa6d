"""The client's half of a method: a coroutine that yields uploads and receives replies.

`kept` names the attributes that must survive a round; everything else is a local variable of the round. No
`torch.no_grad()` block may span a `yield`: that mode is per thread, and another thread may resume the round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

from fedal.data.streams import PrivateData, PrivateStack, PublicData
from fedal.errors import NonFiniteError
from fedal.finite import is_finite
from fedal.lazy import Tensor, torch
from fedal.learners.base import FeatureLearner, Learner, Mode
from fedal.losses import class_prior, d_cross_entropy, d_kl
from fedal.messages import Message
from fedal.methods.kept import Keeper
from fedal.methods.options import MethodOptions

ClientRound = Generator[Message, Any, None]
"""Yields an upload, receives the reply to it."""


@dataclass(frozen=True)
class ClientSetup:
    """Everything that a client's half receives."""

    client_id: str
    learner: Learner
    private: PrivateData | PrivateStack
    public: PublicData | None
    options: MethodOptions
    phase_done: Callable[[str], None] = lambda phase: None


class ClientLogic(Keeper):
    """The client's half: owns a learner and private data, and decides what to upload."""

    def __init__(self, setup: ClientSetup) -> None:
        self.client_id = setup.client_id
        self.learner = setup.learner
        self.private = cast("PrivateData", setup.private)  # in a stack: the same with a leading client axis
        self.hp: Any = setup.options
        self.device = setup.private.label_counts.device
        self.observed: dict[str, Tensor | float] = {}  # numbers of this round, for the record; see records/observed.py
        self._public = setup.public
        self._phase_done = setup.phase_done
        self._log_prior: Tensor | None = None
        if self.hp.local_loss == "balanced":
            self._log_prior = class_prior(self.private.label_counts, self.hp.prior_smoothing)

    @property
    def public(self) -> PublicData:
        if self._public is None:
            raise RuntimeError(f"{type(self).__name__} uses public data without declaring that need")
        return self._public

    def round(self, t: int) -> ClientRound:
        """Runs round t: trains, yields uploads, receives replies."""
        raise NotImplementedError(f"{type(self).__name__} must define round(t)")

    def public_batch_of(self, upload: object) -> str | None:
        """The digest of the public batch that an upload is about; None if it is about no batch."""
        if self._public is None or not isinstance(upload, Message) or not upload.about_batch:
            return None
        return self._public.drawn

    # building blocks of methods

    def local_training(self, t: int, keep: float = 0.0, stages: int = 1) -> None:
        """Takes tau steps, or those of several stages, on V^loc = l(y, f) + keep * r^loc, Eq. (client_loss_loc)."""
        anchor = self.anchor(keep)  # theta^{t,0}
        for x, y in self.private_batches(t, stages):
            f = self.learner.logits(x)
            self.step(cross_entropy=self.d_supervised(f, y), keep_local=anchor.pull(x, f))

    def private_batches(self, t: int, stages: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau private batches of each stage of round t, for local training with extra terms.

        Yields (B, ...), (B,): inputs and labels.
        """
        for stage in range(stages * t, stages * (t + 1)):
            for i in range(self.hp.tau):
                yield self.private.batch(stage, i)
        self._phase_done("after_local")

    def d_supervised(self, f: Tensor, y: Tensor) -> Tensor:
        """Gradient of l(y, f), the option `local_loss`, w.r.t. the logits f.  (B, K), (B,) -> (B, K)"""
        return d_cross_entropy(f if self._log_prior is None else f + self._log_prior.to(f.dtype), y)

    def public_passes(self, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau public batches of round t, the same for all clients, each with the logits of a pending pass.

        Yields (B, ...), (B, K): inputs and logits.
        """
        for i in range(self.hp.tau):
            x = self.public.batch(t, i)
            yield x, self.learner.logits(x, self.hp.public_mode)

    def anchor(self, weight: float, mode: Mode = "train") -> Anchor:
        """The current model as the reference for the next stage of tau steps."""
        return Anchor(self.learner, weight, getattr(self.hp, "temperature", 1.0), self.hp.tau, mode)

    def step(self, *passes: Mapping[str, Tensor], features: Tensor | None = None, **gradients: Tensor | None) -> None:
        """Takes one optimizer step along the sum of the named terms' gradients w.r.t. the pending logits (B, K).

        None drops a term; without any term there is no step. `features` (B, d) is a gradient w.r.t. the features of
        that pass. If several passes are pending, give one mapping of terms per pass, in call order.
        """
        named = [*passes] or [{name: gradient for name, gradient in gradients.items() if gradient is not None}]
        if features is None and not any(named):
            self.learner.forget()
            return
        totals = [reduce(torch.add, terms.values()) if terms else None for terms in named]
        if not all(is_finite(gradient) for gradient in (*totals, features) if gradient is not None):
            parts = [part for terms in named for part in terms.items()]
            parts += [("the features", features)] if features is not None else []
            non_finite = [name for name, gradient in parts if not is_finite(gradient)]
            raise NonFiniteError(
                f"the gradient of {' and of '.join(non_finite) or 'the sum of all terms'} has non-finite values. "
                "A smaller lr usually helps; a loss weight or the input data may be too large."
            )
        if features is None:
            self.learner.learn(*(total for total in totals if total is not None))
        else:
            cast("FeatureLearner", self.learner).learn(*totals, dfeatures=features)


class Anchor:
    """Less-forgetting: weight * KL(p(theta at the start of the stage) || p(theta)), r^loc and r^glo of the paper.

    At the first step of a stage, student and anchor are equal, so the gradient is exactly zero and the pass is skipped.
    """

    skip_first = True

    def __init__(self, learner: Learner, weight: float, temperature: float, tau: int, mode: Mode) -> None:
        self._weight, self._temperature = weight, temperature
        self._past = learner.frozen(mode) if weight and (tau > 1 or not self.skip_first) else None
        self._moved = not self.skip_first

    def pull(self, x: Tensor, f: Tensor) -> Tensor | None:
        """The gradient of the term w.r.t. the logits f on batch x; None for weight 0.  (B, ...), (B, K) -> (B, K)"""
        if self._past is None or not self._moved:
            self._moved = True
            return torch.zeros_like(f) if self._weight else None
        return weighted(self._weight, d_kl(self._past(x), f, self._temperature))


def weighted(weight: float, gradient: Tensor) -> Tensor | None:
    """weight * gradient; None for weight 0, which drops the term (0 * inf would be NaN)."""
    return weight * gradient if weight else None
