"""Separates method options, given flat or in a table, from the other settings, and validates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fedal import methods
from fedal.config.mistakes import explain, unknown_setting
from fedal.config.presets import as_dict
from fedal.errors import ConfigError
from fedal.methods.options import MethodOptions


def take_options(values: dict[str, Any], name: Any, settings: Sequence[str], problems: list[str]) -> MethodOptions:
    """Moves the options of method `name` out of `values`; adds unknown keys and invalid values to `problems`."""
    try:
        if not isinstance(name, str):
            raise ConfigError(f"method = {name!r}: expected a name. `fedal methods` lists them.")
        method = methods.get(name)
    except ConfigError as error:
        problems.append(str(error))
        values.pop("method")
        method = None
    options = values.pop("options", {})
    if not isinstance(options, Mapping | BaseModel):
        problems.append(f"options = {options!r}: expected a table of method options, such as tau = 3.")
    given = as_dict(options)
    known = list(method.options.model_fields) if method else []
    for key in [key for key in values if key not in settings]:
        value = values.pop(key)
        if key in known:
            given[key] = value
        elif method:  # if the method is unknown, the key may be one of its options
            problems.append(unknown_setting(key, [*settings, *known], [method.name]))
    if method is None:
        return MethodOptions()
    for key in [key for key in given if key not in known]:
        given.pop(key)
        problems.append(unknown_setting(f"options.{key}", [f"options.{name}" for name in known], [method.name]))
    try:
        return method.options(**given)
    except ValidationError as error:
        problems += explain(error, method.options)
        return method.options()
