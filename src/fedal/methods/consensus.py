"""One value from the outputs of all clients: how the server makes it, and how a client learns from it.

The mean of logits goes down as `Consensus`, which a client can take apart to leave itself out. No other value has such
an identity: it is sent as it is, the same to all, and learnt as it is.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedal.aggregate import Rule, Space, combined, leave_one_out, mean_over_clients
from fedal.lazy import Tensor, torch
from fedal.losses import Loss, kl, kl_to_probs
from fedal.messages import Consensus, Message, Outputs, Teacher
from fedal.methods.options import TransferOptions

TRIM = Field(
    0.2, ge=0, lt=0.5, description="aggregate=trimmed: share dropped at each end, floor(trim x N) clients (0 below N=5)"
)


class AggregateOptions(TransferOptions):
    """Options of every method whose server makes one value of all clients' outputs."""

    aggregate: Rule = Field(
        "mean", description="how outputs are combined; all but mean bound the influence of a few bad clients"
    )
    space: Space = Field(
        "logits", description="what is combined: logits, or softmax(logits / temperature), which is bounded"
    )
    trim: float = TRIM


def in_space(f: Tensor, options: AggregateOptions) -> Tensor:
    """The logits f, or their probabilities, as the option `space` selects.  (..., K) -> (..., K)"""
    return torch.softmax(f / options.temperature, -1) if options.space == "probabilities" else f


def teaching(f: Tensor, options: AggregateOptions) -> Message:
    """What the server replies to the stacked logits of all clients that responded.  (N, B, K)"""
    if options.aggregate == "mean" and options.space == "logits":
        return Consensus(mean_over_clients(f), len(f))
    value = combined(in_space(f, options), options.aggregate, options.space, options.trim)
    return Outputs(value) if options.space == "logits" else Teacher(value)


def teacher_logits(down: Any, f: Tensor) -> Tensor:
    """The logits to learn from: as they were sent, or the mean over the others.  (B, K) -> (B, K)"""
    return down.values if isinstance(down, Outputs) else leave_one_out(down.mean, f, down.count)


def divergence(down: Any, f: Tensor, temperature: float) -> Loss:
    """KL from what the server taught to the client's logits f, Eq. (kl).  (B, K)"""
    if isinstance(down, Teacher):
        return kl_to_probs(down.values, f, temperature)
    return kl(teacher_logits(down, f), f, temperature)
