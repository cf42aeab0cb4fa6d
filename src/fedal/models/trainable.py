"""Checks before training that a module can be trained and saved; initialises lazy layers."""

from __future__ import annotations

from fedal.errors import ConfigError
from fedal.lazy import torch
from fedal.models.output_width import outputs_of


def is_lazy(model: torch.nn.Module) -> bool:
    """Whether a layer of the model waits for its first batch to create its weights."""
    return any(torch.nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


def initialise(model: torch.nn.Module, input_shape: tuple[int, ...], *, name: str) -> None:
    """Creates the weights of lazy layers, if there are any, with torch's generator."""
    if is_lazy(model):
        was_training = model.training
        outputs_of(model.eval(), input_shape, name)  # a pass in evaluation mode changes no running average
        model.train(was_training)


def refuse_untrainable(model: torch.nn.Module, *, name: str) -> None:
    """Raises ConfigError if the model has nothing to train, or state that fedal cannot carry."""
    parameters = [*model.parameters()]
    if not parameters:
        raise ConfigError(
            f'model "{name}" has no parameters, so it cannot learn. Expected an nn.Module with at least one; '
            "docs/learners.md shows how models outside PyTorch take part."
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f'model "{name}" has nothing to train: all of its {len(parameters)} parameters are frozen '
            "(requires_grad=False). Unfreeze at least its last layer."
        )
    for part, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_complex():
            raise ConfigError(
                f'model "{name}": {part} is {value.dtype}; expected real numbers, because conversion to the precision '
                "of the run would drop its imaginary part. Store real and imaginary part as two tensors."
            )
    for part, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f'model "{name}": {part} in its state_dict is a {type(value).__name__}; fedal saves tensors only. '
                "Make it a buffer with register_buffer."
            )
