"""Checks before training that a model's passes depend only on its inputs, its saved state and fedal's counters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedal.errors import ConfigError
from fedal.learners.base import Learner, Mode
from fedal.learners.torch_learner import TorchLearner
from fedal.user_code import one_line


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


def refuse_hidden_state(make: Callable[[], TorchLearner], x: Tensor, name: str) -> None:
    """Raises ConfigError if a model that was trained and saved computes other outputs after it is restored.

    Compares two steps of training with a restored copy, in both modes. Such state is a plain attribute that changes in
    training. An attribute without effect on outputs is allowed; one whose effect begins later is not found.
    """
    trained, restored = make(), make()
    try:
        for _ in range(2):
            trained.learn(torch.softmax(trained.logits(x), -1) / len(x))
        trained.frozen()
        restored.load_state_dict(trained.state_dict())
        modes: tuple[Mode, ...] = ("eval", "frozen")
        pairs = [(trained.logits(x, mode), restored.logits(x, mode)) for mode in modes]
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f'model "{name}": a training step failed with {one_line(error)}. If it keeps computed tensors as '
            "attributes, detach them."
        ) from error
    if all(torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True) for one, other in pairs):
        return
    changed = _differing_attributes(trained.module, restored.module)
    raise ConfigError(
        f'model "{name}" keeps state that changes in training outside its parameters and buffers '
        f"({', '.join(changed) or 'not in an attribute of a module'}). It would be lost in the exported model and on "
        'resume. Make it a buffer: self.register_buffer("name", tensor).'
    )


def _differing_attributes(one: nn.Module, other: nn.Module) -> list[str]:
    """The names of tensors and numbers that are plain attributes and differ between two models of one kind."""
    found = []
    for (prefix, part), twin in zip(one.named_modules(), other.modules(), strict=False):
        for name, value in vars(part).items():
            if isinstance(value, Tensor | np.ndarray | int | float):
                fresh = vars(twin).get(name)
                if type(fresh) is not type(value) or not np.array_equal(_as_array(fresh), _as_array(value)):
                    found.append(f"{prefix}.{name}" if prefix else name)
    return found


def _as_array(value: object) -> np.ndarray[Any, Any]:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)


def _generator_states() -> dict[str, object]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 - a user's layer may draw from this generator
        "random": random.getstate(),
    }
