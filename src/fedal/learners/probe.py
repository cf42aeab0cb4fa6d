"""Checks before training that a model's passes depend only on its inputs and fedal's counters."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from fedal.errors import ConfigError
from fedal.learners.base import Learner


def refuse_hidden_randomness(learner: Learner, x: Tensor, client_id: str) -> None:
    """Raises ConfigError if a training pass draws from a process-wide generator: results would depend on thread timing.

    `nn.Dropout` layers are allowed, since their masks come from counters; `F.dropout` and noise layers are not.
    """
    before = _generator_states()
    learner.logits(torch.cat([x, -x]), mode="frozen")  # both signs: RReLU, for instance, draws only for negative units
    learner.forget()
    drawn = [name for name, state in _generator_states().items() if state != before[name]]
    if drawn:
        raise ConfigError(
            f'the model of client "{client_id}" draws from the global generator of {" and ".join(drawn)} in a training '
            "pass, so the same seed would not give the same result. Use nn.Dropout layers instead of F.dropout, or "
            "accept this with --set allow_nondeterministic=true."
        )


def _generator_states() -> dict[str, object]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 - a user's layer may draw from this generator
        "random": random.getstate(),
    }
