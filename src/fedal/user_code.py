"""The user's own code, named `package.module:object` in a config or on the command line."""

from __future__ import annotations

import importlib
import operator
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedal.errors import ConfigError, FedalError, RunError
from fedal.printable import printable

LIBRARIES = ("fedal", "torch", "numpy", "scipy", "sklearn", "jax", "ray", "pydantic")
NOT_USER_CODE = {*LIBRARIES, *sys.stdlib_module_names}
PLACE = "place_in_user_code"  # attribute of an error that came from another process


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
    """Type and message of an error without line breaks, and the place in the user's code where it was raised."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()).removesuffix("."))
    place = place_in_user_code(error)
    return f"{text} ({place})" if place else text


class explained:
    """Turns what other code raises in the block, perhaps the user's, into a RunError of one line.

    Mistakes that fedal has put into words, errors of the system, and those in `passed` stay as they are. A class,
    because a site enters it in every exchange: contextlib's generators take four times as long.
    """

    def __init__(self, where: str, *passed: type[Exception]) -> None:
        self._where, self._passed = where, passed

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (FedalError, OSError, *self._passed)):
            raise RunError(f"{self._where}: {one_line(error)}.") from error


def place_in_user_code(error: BaseException) -> str:
    """File and line of the innermost frame outside fedal, Python and common libraries; an empty string without one."""
    found = getattr(error, PLACE, "")  # from another process, where the traceback was left
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in NOT_USER_CODE:
            found = f"{_relative(frame.f_code.co_filename)}, line {line}, in {frame.f_code.co_name}"
    return found


def keep_traceback(error: Exception) -> None:
    """Attaches place and traceback to an error that is about to leave its process, which would drop both."""
    setattr(error, PLACE, place_in_user_code(error))
    error.add_note("".join(traceback.format_exception(error)))


def _relative(file: str) -> str:
    """The path relative to the current directory, if the file is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
