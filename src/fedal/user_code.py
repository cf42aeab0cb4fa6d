"""The user's own code, named `package.module:object` in a config or on the command line."""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any

from fedal.errors import ConfigError


def is_import_path(name: str) -> bool:
    """Whether `import_object` would run a module for this name: reject it first if the name is not trusted."""
    return ":" in name


def named_code(values: Mapping[str, Any]) -> list[str]:
    """The import paths in a config, `package.module:object`: fedal would run these modules."""
    models, tables = values.get("models", []), values.get("clients", [])
    names = [values.get("method"), *(models.split(",") if isinstance(models, str) else _as_list(models))]
    names += [table.get("model") for table in _as_list(tables) if isinstance(table, dict)]
    options = values.get("options", {})
    names += options.values() if isinstance(options, dict) else []
    return [name for name in names if isinstance(name, str) and is_import_path(name)]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def import_object(path: str, what: str) -> Any:
    """The object that `package.module:object` names; raises ConfigError, which `what` begins.

    Installed packages are searched first, the current directory last.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise ConfigError(f'{what} "{path}": expected package.module:name, for example my_nets:TinyCNN.')
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # last and permanently: it shadows nothing, and the module's own imports work too
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user code may raise anything while it is imported
        raise ConfigError(
            f'{what} "{path}": importing {module_name} failed with {one_line(error)}. '
            "fedal searches the installed packages and the current directory."
        ) from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        raise ConfigError(f'{what} "{path}": {module_name} has no {attribute} ({module.__file__}).') from error


def one_line(error: Exception) -> str:
    """Type and message of an error without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
