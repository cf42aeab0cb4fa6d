"""The client's half of a method: a coroutine that yields uploads and receives replies.

`kept` names the attributes that must survive a round; everything else is a local variable of the round. No
`torch.no_grad()` block may span a `yield`: that mode is per thread, and another thread may resume the round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

from fedal.data.streams import PrivateData, PrivateStack, PublicData
from fedal.errors import NonFiniteError
from fedal.finite import is_finite
from fedal.lazy import Tensor, torch
from fedal.learners.base import FeatureLearner, GradientLearner, Learner, Mode, end_stage
from fedal.losses import PrivateLoss, class_prior, d_cross_entropy, own_classes
from fedal.messages import Message
from fedal.methods.forgetting import Forgetting, d_forgetting
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
    seed: int = 0
    phase_done: Callable[[str], None] = lambda phase: None
    loss: PrivateLoss = field(default_factory=PrivateLoss)
    partial: bool = False  # whether each round has a cohort; see the setting `participation`


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
        self._shift, self._loss = self._logit_shift(), setup.loss
        if self.hp.local_loss == "restricted":
            self._loss = replace(setup.loss, own=self.private.label_counts > 0)

    def _logit_shift(self) -> Tensor | None:
        """What the option `local_loss` adds to the logits before the cross-entropy.  -> (K,)"""
        counts, loss = self.private.label_counts, self.hp.local_loss
        if loss == "restricted":
            return own_classes(counts)
        if loss == "balanced" and self.hp.prior_strength:
            return cast("Tensor", self.hp.prior_strength * class_prior(counts, self.hp.prior_smoothing))
        return None

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

    def local_training(self, t: int, keep: float = 0.0, stages: int = 1, data: PrivateData | None = None) -> None:
        """Takes tau steps, or those of several stages, on V^loc = l(y, f) + keep * r^loc, Eq. (client_loss_loc).

        `data`: a part of the client's samples, in place of all of them.
        """
        anchor = self.anchor(keep)  # theta^{t,0}
        for x, y in self.private_batches(t, stages, data):
            f = self.learner.logits(x)
            self.step(cross_entropy=self.d_supervised(f, y), keep_local=anchor.pull(x, f, y))

    def private_batches(
        self, t: int, stages: int = 1, data: PrivateData | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau private batches of each stage of round t, for local training with extra terms.

        Yields (B, ...), (B,): inputs and labels.
        """
        for stage in range(stages * t, stages * (t + 1)):
            for i in range(self.hp.tau):
                yield (data or self.private).batch(stage, i)
            end_stage(self.learner)
        self._phase_done("after_local")

    def d_supervised(self, f: Tensor, y: Tensor) -> Tensor:
        """Gradient of l(y, f), the option `local_loss`, w.r.t. the logits f.  (B, K), (B,) -> (B, K)"""
        shifted = f if self._shift is None else f + self._shift.to(f.dtype)
        return d_cross_entropy(shifted, y) if self._loss.is_plain else self._loss.gradient(shifted, y)

    def public_passes(self, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The tau public batches of round t, the same for all clients, each with the logits of a pending pass.

        Yields (B, ...), (B, K): inputs and logits.
        """
        for i in range(self.hp.tau):
            x = self.public.batch(t, i)
            yield x, self.learner.logits(x, self.hp.public_mode)
        end_stage(self.learner)

    def anchor(self, weight: float, mode: Mode = "train", steps: int | None = None) -> Anchor:
        """The current model as the reference for the next stage, of tau steps unless said otherwise."""
        kind: Forgetting = getattr(self.hp, "forgetting", "kl")
        owned = self.private.label_counts > 0
        temperature = getattr(self.hp, "temperature", 1.0)
        return Anchor(self.learner, weight, temperature, steps or self.hp.tau, mode, kind, owned)

    def step(
        self,
        *passes: Mapping[str, Tensor],
        features: Tensor | None = None,
        weights: dict[str, Tensor] | None = None,
        **gradients: Tensor | None,
    ) -> None:
        """Takes one optimizer step along the sum of the named terms' gradients w.r.t. the pending logits (B, K).

        None drops a term; without any term there is no step. `features` (B, d) is a gradient w.r.t. the features of
        that pass, `weights` one w.r.t. the weights by name. If several passes are pending, give one mapping of terms
        per pass, in call order.
        """
        named = [*passes] or [{name: gradient for name, gradient in gradients.items() if gradient is not None}]
        if features is None and not any(named):
            self.learner.forget()
            return
        totals = [reduce(torch.add, terms.values()) if terms else None for terms in named]
        more = {} if features is None else {"the features": features}
        more |= weights or {}
        if not all(is_finite(gradient) for gradient in (*totals, *more.values()) if gradient is not None):
            parts = [part for terms in named for part in terms.items()] + [*more.items()]
            non_finite = [name for name, gradient in parts if not is_finite(gradient)]
            raise NonFiniteError(
                f"the gradient of {' and of '.join(non_finite) or 'the sum of all terms'} has non-finite values. "
                "A smaller lr usually helps; a loss weight or the input data may be too large."
            )
        if weights is not None:
            cast("GradientLearner", self.learner).learn(*(t for t in totals if t is not None), dweights=weights)
        elif features is None:
            self.learner.learn(*(total for total in totals if total is not None))
        else:
            cast("FeatureLearner", self.learner).learn(*totals, dfeatures=features)


class Anchor:
    """Less-forgetting: weight * KL(p(theta at the start of the stage) || p(theta)), r^loc and r^glo of the paper.

    The option `forgetting` selects another distance. At the first step of a stage, student and anchor are equal, so the
    gradient is exactly zero and the pass is skipped.
    """

    skip_first = True

    def __init__(
        self,
        learner: Learner,
        weight: float,
        temperature: float,
        steps: int,
        mode: Mode,
        kind: Forgetting,
        owned: Tensor,
    ) -> None:
        self._weight, self._temperature, self._kind, self._owned = weight, temperature, kind, owned
        self._past = learner.frozen(mode) if weight and (steps > 1 or not self.skip_first) else None
        self._moved = not self.skip_first

    def pull(self, x: Tensor, f: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """The gradient of the term w.r.t. the logits f on batch x, which may have labels; None for weight 0.

        (B, ...), (B, K) -> (B, K)
        """
        if self._past is None or not self._moved:
            self._moved = True
            return torch.zeros_like(f) if self._weight else None
        past = self._past(x)
        return weighted(self._weight, d_forgetting(self._kind, past, f, labels, self._owned, self._temperature))


def weighted(weight: float, gradient: Tensor) -> Tensor | None:
    """weight * gradient; None for weight 0, which drops the term (0 * inf would be NaN)."""
    if weight == 1:  # the same bits
        return gradient
    return weight * gradient if weight else None
