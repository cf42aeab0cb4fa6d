"""Checks before training that a model returns one logit per class for this data."""

from __future__ import annotations

import copy

from fedal.errors import ConfigError
from fedal.lazy import torch
from fedal.user_code import one_line


def check_output_width(
    model: torch.nn.Module, input_shape: tuple[int, ...], n_classes: int, *, name: str | None = None
) -> None:
    """Raises ConfigError unless the model maps two such samples to (2, n_classes). Does not change the model."""
    name = name or type(model).__name__
    logits = outputs_of(copy_of(model, name).eval(), input_shape, name)  # even a model that counts calls is unchanged
    if not isinstance(logits, torch.Tensor):
        raise ConfigError(f'model "{name}" returned {type(logits).__name__}; expected one tensor of logits.')
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


def outputs_of(model: torch.nn.Module, input_shape: tuple[int, ...], name: str) -> torch.Tensor:
    """What the model returns for two samples of zeros, without a graph; raises ConfigError if it fails."""
    try:
        with torch.no_grad():
            return model(torch.zeros(2, *input_shape))  # type: ignore[no-any-return]
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f'model "{name}" cannot take samples of shape {tuple(input_shape)}: {one_line(error)}.'
        ) from error
