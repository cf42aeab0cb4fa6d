"""Learning-rate schedules: pure functions of the step, so that a resumed run continues on the same curve."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine", "exponential"]


def rate(schedule: Schedule, step: int, steps: float, end: float) -> float:
    """The factor of the step size at `step`: 1 at the start, `end` from `steps` on."""
    progress = min(step / steps, 1.0) if steps > 0 else 1.0
    if schedule == "linear":
        return 1 - (1 - end) * progress
    if schedule == "cosine":
        return end + (1 - end) * (1 + math.cos(math.pi * progress)) / 2
    if schedule == "exponential":
        return float(end**progress)
    return 1.0
