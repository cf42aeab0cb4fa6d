"""A rule for the discriminator's step size: larger while it guesses, smaller while it hardly ever errs.

One at chance sends gradients that mean nothing, and one that is always right has saturated. Both depend on the data, on
the number of clients and on how far training is, so no constant is right for all of a run. Our own: no paper has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RATE = 0.1  # the weight of the newest exchange in the running skill: the last ten count most
FACTOR = 1.02  # of one change: ten times the step size takes 117 exchanges
GUESSING = 0.2  # below this share of the target it counts as guessing
RANGE = 100.0  # the step size stays within its first value divided and multiplied by this


class Balance:
    """Keeps the skill of a discriminator between a fifth of the target and the target, by its step size `lr`.

    Skill is the share of the way from guessing (0) to no mistake (1). The range is wide on purpose: how different the
    clients are decides most of the skill, and inside the range the step size is not what is wrong.
    """

    def __init__(self, lr: float, target: float) -> None:
        self.lr, self._target = lr, target
        self._smallest, self._largest = lr / RANGE, lr * RANGE
        self._skill: float | None = None  # running mean; None before the first exchange

    def update(self, accuracy: float, chance: float) -> None:
        """Changes `lr` after an exchange in which guessing would have had the accuracy `chance`."""
        if chance == 1:  # one group is alone: there is nothing to tell apart
            return
        skill = (accuracy - chance) / (1 - chance)
        self._skill = skill if self._skill is None else self._skill + RATE * (skill - self._skill)
        if self._skill < GUESSING * self._target:
            self.lr = min(self.lr * FACTOR, self._largest)
        elif self._skill > self._target:
            self.lr = max(self.lr / FACTOR, self._smallest)

    def state_dict(self) -> dict[str, Any]:
        return {"lr": self.lr, "skill": self._skill}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lr, self._skill = state["lr"], state["skill"]
