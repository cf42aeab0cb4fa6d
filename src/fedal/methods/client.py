"""The client's half of a method: a coroutine that yields what it uploads and receives what comes down.

What must survive a round is named in `kept`; what belongs to a round is a local variable of that round. No
`torch.no_grad()` block may span a `yield`: that mode belongs to the thread, and another thread may resume.
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
    """All that a client's half is given."""

    client_id: str
    learner: Learner
    private: PrivateData | PrivateStack
    public: PublicData | None
    options: MethodOptions
    phase_done: Callable[[str], None] = lambda phase: None


class ClientLogic(Keeper):
    """The client's half: owns a learner and private data, decides what it uploads."""

    def __init__(self, setup: ClientSetup) -> None:
        self.client_id = setup.client_id
        self.learner = setup.learner
        self.private = cast("PrivateData", setup.private)  # of a stack: the same with a client axis in front
        self.hp: Any = setup.options
        self.device = setup.private.label_counts.device
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

    def spoken_about(self, upload: object) -> str | None:
        """The digest of the public batch that an upload speaks of; None when it speaks of none."""
        if self._public is None or not isinstance(upload, Message) or not upload.about_batch:
            return None
        return self._public.drawn

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
