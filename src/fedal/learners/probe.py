"""Finds out before training whether a model's passes are a function of its inputs and our counters alone."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from fedal.errors import ConfigError
from fedal.learners.base import Learner


def refuse_hidden_randomness(learner: Learner, x: Tensor, client_id: str) -> None:
    """Raises when a training pass draws from a process-wide generator: results would depend on thread timing.

    `nn.Dropout` layers are fine, their masks come from counters; `F.dropout`, noise layers and the like are not.
    """
    before = _generator_states()
    learner.logits(torch.cat([x, -x]), mode="frozen")  # both signs: RReLU, for one, draws for negative units only
    learner.forget()
    drawn = [name for name, state in _generator_states().items() if state != before[name]]
    if drawn:
        raise ConfigError(
            f'the model of client "{client_id}" draws from the global generator of {" and ".join(drawn)} in a training '
            "pass, so the same seed would not give the same result. Use nn.Dropout layers instead of F.dropout, or "
            "accept it with --set allow_nondeterministic=true."
        )


def _generator_states() -> dict[str, object]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 - that is the generator a user's layer may draw from
        "random": random.getstate(),
    }
