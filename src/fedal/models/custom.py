"""Your own models: `package.module:factory` names a function or class that creates an `nn.Module`.

The factory may take any of `input_shape`, `n_classes` and its alias `num_classes`, by name; it may also take nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedal.errors import ConfigError
from fedal.lazy import torch
from fedal.user_code import import_object, one_line


def load_factory(path: str) -> Callable[..., Any]:
    """The factory that `package.module:factory` names; raises ConfigError."""
    factory = import_object(path, "model")
    if not callable(factory):
        raise ConfigError(f'model "{path}": expected a function or class, found {type(factory).__name__}.')
    return factory  # type: ignore[no-any-return]


def call_factory(
    name: str, factory: Callable[..., Any], input_shape: tuple[int, ...], n_classes: int
) -> torch.nn.Module:
    """The model that a factory creates; raises ConfigError if it cannot be called or returns anything else."""
    model = call_any_factory(name, factory, input_shape, n_classes)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f'model "{name}": its factory returned {type(model).__name__}; expected a torch.nn.Module.')
    return model


def call_any_factory(name: str, factory: Callable[..., Any], input_shape: tuple[int, ...], n_classes: int) -> Any:
    """The object that a factory creates, possibly another framework's learner; raises ConfigError if the call fails."""
    if isinstance(factory, torch.nn.Module):
        raise ConfigError(
            f'model "{name}" is a model, not a factory. Every client needs its own model: name a function or class.'
        )
    offered = {"input_shape": input_shape, "n_classes": n_classes, "num_classes": n_classes}
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.name in offered and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            arguments[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ConfigError(
                f'model "{name}": its factory requires "{parameter.name}"; fedal passes only input_shape and '
                "n_classes. Give the argument a default, or wrap the factory in a function."
            )
    try:
        return factory(**arguments)
    except ConfigError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f'model "{name}": its factory failed with {one_line(error)}') from error
