"""Replay: a client keeps what it was last taught about each public sample, and learns it again between exchanges.

No byte more is sent, and a client takes more steps. What it keeps is what it learnt from: the mean over the others, or
the value that another aggregate sent. That is |P| x K numbers, whatever the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from fedal.lazy import Tensor, torch
from fedal.messages import Message, Outputs, Teacher
from fedal.methods.client import ClientSetup
from fedal.methods.consensus import ConsensusOptions, DistillingClient, teacher_logits
from fedal.seeding import Indices, philox_key, raw_bits


class ReplayOptions(ConsensusOptions):
    distillation: float = Field(1.0, ge=0, description="weight of the distance to the mean of the others")
    replay: int = Field(
        0, ge=0, description="extra steps after each exchange, on what was last taught about public samples; 0: none"
    )

    @property
    def repetitions(self) -> int:
        """Replayed batches per exchange: none without distillation, which is what they repeat."""
        return self.replay if self.distillation else 0

    @property
    def stage_steps(self) -> int:
        """Steps in the transfer stage of a round, if every batch has a term."""
        return self.tau * (1 + self.repetitions)


class Lesson(NamedTuple):
    """What a client was taught about a batch: inputs (B, ...) and the logits (B, K) of its pending pass."""

    taught: Any
    x: Tensor
    f: Tensor


class ReplayingClient(DistillingClient):
    """Repeats what it was taught. An absent client keeps its targets and goes on with them when it returns."""

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        if self.hp.repetitions:
            stacked = self.private.label_counts.shape[:-2]  # () for one client
            size, dtype = len(self.public), self.public.batch_at(0).dtype
            self._targets = torch.zeros(*stacked, size, self.private.n_classes, dtype=dtype, device=self.device)
            self._is_known = torch.zeros(size, dtype=torch.bool, device=self.device)
            self._draws = philox_key(setup.seed, "replay")  # the same at every client, as public batches are
            self.kept, self.kept_apart = (*self.kept, "_targets", "_is_known"), (*self.kept_apart, "_targets")

    def lessons(self, t: int, i: int, down: Any, x: Tensor, f: Tensor) -> Iterator[Lesson]:
        """The reply of exchange i, about inputs x with pending logits f; then `replay` batches of what is known.

        Each is to be learnt before the next is asked for.
        """
        yield Lesson(down, x, f)
        if not self.hp.repetitions:
            return
        ids = self.public.ids(t, i)
        self._keep(ids[: self.public.unchanged(t, i)], down, f)
        first = (t * self.hp.tau + i) * self.hp.replay
        for step in range(first, first + self.hp.replay):
            drawn = self._drawn(step, len(ids))
            x = self.public.take(drawn)
            yield Lesson(self._taught_about(drawn), x, self.learner.logits(x, self.hp.public_mode))

    def _keep(self, ids: Indices, down: Any, f: Tensor) -> None:
        """Stores what was taught about the first samples of the batch, which are the unchanged ones."""
        taught = down.values if isinstance(down, Teacher) else teacher_logits(down, f)
        ids, first = np.unique(ids, return_index=True)  # with fewer public samples than B, some occur twice
        rows = torch.from_numpy(ids).to(self.device)
        self._targets = self._targets.index_copy(-2, rows, taught[..., torch.from_numpy(first).to(self.device), :])
        self._is_known = self._is_known.index_fill(0, rows, True)

    def _drawn(self, step: int, batch_size: int) -> Tensor:
        """Samples with known targets, without repetition: a batch of them, or all if there are fewer.  -> (B,)"""
        order = np.argsort(raw_bits(self._draws, step, len(self.public)), kind="stable")
        known: Any = self._is_known.cpu().numpy()
        return torch.from_numpy(order[known[order]][:batch_size])

    def _taught_about(self, ids: Tensor) -> Message:
        targets = self._targets[..., ids.to(self.device), :]
        return Teacher(targets) if self.hp.space == "probabilities" else Outputs(targets)
