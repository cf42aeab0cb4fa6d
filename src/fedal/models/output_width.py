"""Checks before training that a model returns one logit per class for this data."""

from __future__ import annotations

import copy
from typing import Any

from fedal.errors import ConfigError
from fedal.lazy import torch
from fedal.models.logits_of import logits_of
from fedal.user_code import one_line


def check_output_width(
    model: torch.nn.Module, input_shape: tuple[int, ...], n_classes: int, *, name: str | None = None
) -> None:
    """Raises ConfigError unless the model maps two such samples to (2, n_classes). Does not change the model."""
    name = name or type(model).__name__
    output = outputs_of(copy_of(model, name).eval(), input_shape, name)  # even a model that counts calls is unchanged
    try:
        logits = logits_of(output)
    except TypeError as error:
        raise ConfigError(
            f'model "{name}" returned {type(output).__name__}; expected a tensor of logits, a tuple that begins '
            f"with it, or a dict or object that names it logits ({error})."
        ) from None
    found, expected = tuple(logits.shape), (2, n_classes)
    if found != expected:
        raise ConfigError(
            f'model "{name}" returned shape {found} for two samples; expected {expected}, '
            f"as this data has {n_classes} classes. Check its last layer."
        )


def copy_of(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """A deep copy of the model; raises ConfigError if there is none, since fedal trains copies."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f'model "{name}" cannot be copied: {one_line(error)}. If it uses torch.nn.utils.weight_norm, use '
            "torch.nn.utils.parametrizations.weight_norm; if it keeps computed tensors as attributes, detach them; if "
            "it has lazy layers, pass it one batch first."
        ) from error


def outputs_of(model: torch.nn.Module, input_shape: tuple[int, ...], name: str) -> Any:
    """What the model returns for two samples of zeros, without a graph; raises ConfigError if it fails."""
    try:
        with torch.no_grad():
            return model(torch.zeros(2, *input_shape))
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f'model "{name}" cannot take samples of shape {tuple(input_shape)}: {one_line(error)}.'
        ) from error
