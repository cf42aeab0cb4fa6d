"""Models of your own: `package.module:factory` names a function or class that makes an `nn.Module`.

The factory gets what its signature names, out of `input_shape` and `n_classes` (or `num_classes`, the common
spelling elsewhere); a factory without arguments is fine.
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
    """The model that a factory makes; raises ConfigError where it cannot be called or gives something else."""
    model = call_any_factory(name, factory, input_shape, n_classes)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f'model "{name}": its factory gave {type(model).__name__}; expected a torch.nn.Module.')
    return model


def call_any_factory(name: str, factory: Callable[..., Any], input_shape: tuple[int, ...], n_classes: int) -> Any:
    """Whatever a factory makes, a learner of another framework too; raises ConfigError where it cannot be called."""
    if isinstance(factory, torch.nn.Module):
        raise ConfigError(
            f'model "{name}" is a model, not a factory. Every client needs one of its own: name a function or class.'
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
                f'model "{name}": its factory asks for "{parameter.name}"; input_shape and n_classes are what it can '
                "get. Give the argument a default, or wrap the factory in a function."
            )
    try:
        return factory(**arguments)
    except ConfigError:
        raise
    except Exception as error:  # whatever a foreign factory raises
        raise ConfigError(f'model "{name}": its factory failed with {one_line(error)}') from error
