"""Optional packages: tests of a missing one are skipped by name; with CI=true they fail instead."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def needs(module: str, extra: str) -> Any:
    """The module; if it is missing, the calling test (or test file) is skipped by name."""
    try:
        return importlib.import_module(module)
    except ImportError:
        reason = f"{module} is not installed: fedal[{extra}]"
        if os.environ.get("CI") == "true":
            raise AssertionError(reason) from None
        pytest.skip(reason, allow_module_level=True)
