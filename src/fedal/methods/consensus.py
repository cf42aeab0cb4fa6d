"""One value from the outputs of all clients: how the server makes it, and how a client learns from it.

The mean of logits goes down as `Consensus`, which a client can take apart to leave itself out. No other value has such
an identity: it is sent as it is, the same to all, and learnt as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

from pydantic import Field

from fedal.aggregate import Rule, Space, combined, leave_one_out, mean_over_clients
from fedal.lazy import Tensor, torch
from fedal.losses import Loss, kl, kl_by_certainty, kl_to_probs, softmax
from fedal.messages import Consensus, Message, Outputs, Teacher
from fedal.methods.class_history import ClassHistory, RememberingRule, remembering
from fedal.methods.client import ClientLogic, ClientRound, weighted
from fedal.methods.options import MethodOptions, TransferOptions

TRIM = Field(
    0.2,
    ge=0,
    lt=0.5,
    description="aggregate=trimmed: share dropped at each end, floor(trim x N) clients (0 below N=5); multi-krum: "
    "share of clients dropped; cronus: share of suspects",
)


class AggregateOptions(TransferOptions):
    """Options of every method whose server makes one value of all clients' outputs."""

    aggregate: Rule = Field(
        "mean",
        description="how outputs are combined; median, trimmed, geometric-median, cronus bound a few bad clients; "
        "entropy, inverse-entropy, variance, confidence weigh clients per sample; era, power sharpen the mean",
    )
    space: Space = Field(
        "logits", description="what is combined: logits, or softmax(logits / temperature), which is bounded"
    )
    trim: float = TRIM
    sharpness: float | None = Field(
        None,
        ge=0,
        description="1/T of aggregate=era (10), exponent of power (2), of debias, coverage, align (1), 1/T of "
        "entropy weights (1)",
    )


class ConsensusOptions(AggregateOptions):
    """Options of methods whose server also remembers what clients said about the classes."""

    aggregate: Literal[Rule, RememberingRule] = Field(  # type: ignore[assignment] # wider, and frozen
        "mean",
        description=f"{AggregateOptions.model_fields['aggregate'].description}; debias, coverage correct clients by "
        "what they said on earlier batches, align their mean",
    )
    class_strength: float = Field(
        1.0,
        ge=0,
        description="aggregate=debias: how much of a client's mean log-probabilities is subtracted; coverage: exponent "
        "of its share of a class; align: exponent of the clients' mean share of a class; 0: the mean",
    )
    certainty: float = Field(
        0.0,
        ge=0,
        description="weighs each public sample in distillation by (1 - entropy of what is taught / log K) to this "
        "power; 0: all alike",
    )


def in_space(f: Tensor, options: AggregateOptions) -> Tensor:
    """The logits f, or their probabilities, as the option `space` selects.  (..., K) -> (..., K)"""
    return torch.softmax(f / options.temperature, -1) if options.space == "probabilities" else f


def remembers(options: MethodOptions) -> bool:
    """Whether the server must keep a history of what clients said about the classes."""
    return isinstance(options, ConsensusOptions) and options.aggregate in get_args(RememberingRule)


def teaching(f: Tensor, options: ConsensusOptions, clients: Sequence[str], history: ClassHistory) -> Message:
    """What the server replies to the stacked logits of the clients that responded.  (N, B, K)"""
    rule = options.aggregate
    if rule == "mean" and options.space == "logits":
        return Consensus(mean_over_clients(f), len(f))
    values = in_space(f, options)
    if remembers(options):
        remembered, strength = cast("RememberingRule", rule), options.class_strength
        value = remembering(f, values, clients, history, remembered, strength, options.temperature, options.sharpness)
    else:
        value = combined(values, cast("Rule", rule), options.space, options.trim, options.sharpness)
    return Outputs(value) if options.space == "logits" else Teacher(value)


def teacher_logits(down: Any, f: Tensor) -> Tensor:
    """The logits to learn from: as they were sent, or the mean over the others.  (B, K) -> (B, K)"""
    return down.values if isinstance(down, Outputs) else leave_one_out(down.mean, f, down.count)


def divergence(down: Any, f: Tensor, temperature: float, certainty: float = 0.0) -> Loss:
    """KL from what the server taught to the client's logits f, Eq. (kl), perhaps weighted by its certainty.  (B, K)"""
    if certainty:
        is_teacher = isinstance(down, Teacher)
        target = down.values if is_teacher else softmax(teacher_logits(down, f) / temperature, like=f)
        return kl_by_certainty(target, f, certainty, temperature)
    if isinstance(down, Teacher):
        return kl_to_probs(down.values, f, temperature)
    return kl(teacher_logits(down, f), f, temperature)


class DistillingClient(ClientLogic):
    """Trains on its own data, then uploads its logits on each public batch and learns what comes back."""

    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for i, (_x, f) in enumerate(self.public_passes(t)):
            down = yield self.upload(t, i, f)
            self.step(distillation=weighted(self.hp.distillation, self.taught(down, f).gradient))

    def upload(self, t: int, i: int, f: Tensor) -> Message:
        """What the client sends of its logits f on public batch i of round t.  (B, K)"""
        return Outputs(f)

    def taught(self, down: Any, f: Tensor) -> Loss:
        """The distance of the logits f from what the server replied.  (B, K)"""
        return divergence(down, f, self.hp.temperature, getattr(self.hp, "certainty", 0.0))
