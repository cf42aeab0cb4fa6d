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
    probe = copy.deepcopy(model).eval()  # a copy: even a model that counts its calls stays unchanged
    try:
        with torch.no_grad():
            logits = probe(torch.zeros(2, *input_shape))
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f'model "{name}" cannot take samples of shape {tuple(input_shape)}: {one_line(error)}.'
        ) from error
    if not isinstance(logits, torch.Tensor):
        raise ConfigError(f'model "{name}" returned {type(logits).__name__}; expected one tensor of logits.')
    found, expected = tuple(logits.shape), (2, n_classes)
    if found != expected:
        raise ConfigError(
            f'model "{name}" returned shape {found} for two samples; expected {expected}, '
            f"as this data has {n_classes} classes. Check its last layer."
        )
