"""Code of the user's own, named `package.module:object` in a config or on the command line."""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any

from fedal.errors import ConfigError


def is_import_path(name: str) -> bool:
    """Whether this name makes `import_object` run a module: refuse it first when it comes from somebody else."""
    return ":" in name


def named_code(values: Mapping[str, Any]) -> list[str]:
    """The modules that a config makes fedal import: `package.module:object`."""
    models, tables = values.get("models", []), values.get("clients", [])
    names = [values.get("method"), *(models.split(",") if isinstance(models, str) else _as_list(models))]
    names += [table.get("model") for table in _as_list(tables) if isinstance(table, dict)]
    options = values.get("options", {})
    names += options.values() if isinstance(options, dict) else []
    return [name for name in names if isinstance(name, str) and is_import_path(name)]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def import_object(path: str, what: str) -> Any:
    """The object that `package.module:object` names; `what` says in errors what it was for. Raises ConfigError.

    The current directory is searched last.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise ConfigError(f'{what} "{path}": expected package.module:name, for example my_nets:TinyCNN.')
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # last and for good: shadows nothing, and its own imports work too
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ConfigError(
            f'{what} "{path}": importing {module_name} failed with {one_line(error)}. '
            "It is looked for among the installed packages and in the current directory."
        ) from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        raise ConfigError(f'{what} "{path}": {module_name} has no {attribute} ({module.__file__}).') from error


def one_line(error: Exception) -> str:
    """Type and message of an error without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
