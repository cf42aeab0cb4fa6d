"""Options of the method among the settings: given flat or in a table, they end in the method's own type."""

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
    """Takes the options of method `name` out of `values`, and reports keys that are neither these nor `settings`."""
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
        elif method:  # without one, the key may be an option of the method that was meant
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
