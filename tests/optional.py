"""Optional packages and programs: tests of a missing one are skipped by name; with CI=true they fail instead."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any, NoReturn

import pytest


def needs(module: str, extra: str) -> Any:
    """The module; if it is missing, the calling test (or test file) is skipped by name."""
    try:
        return importlib.import_module(module)
    except ImportError:
        leave_out(f"{module} is not installed: fedal[{extra}]")


def needs_programs(*names: str) -> dict[str, str]:
    """name -> path; if one is missing, the calling test is skipped by name."""
    found = {name: shutil.which(name) or "" for name in names}
    if missing := [name for name, path in found.items() if not path]:
        leave_out(f"not installed: {', '.join(missing)}")
    return found


def leave_out(reason: str) -> NoReturn:
    """Skips the calling test (or test file) by name; fails it with CI=true."""
    if os.environ.get("CI") == "true":
        raise AssertionError(reason)
    pytest.skip(reason, allow_module_level=True)
