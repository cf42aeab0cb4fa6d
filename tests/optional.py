"""Packages of extras: where one is missing its tests are named as not run; where CI is true that is a failure."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def needs(module: str, extra: str) -> Any:
    """The module; without it, the test (or the file of tests) that asks is skipped by name."""
    try:
        return importlib.import_module(module)
    except ImportError:
        reason = f"{module} is not installed: fedal[{extra}]"
        if os.environ.get("CI") == "true":
            raise AssertionError(reason) from None
        pytest.skip(reason, allow_module_level=True)
