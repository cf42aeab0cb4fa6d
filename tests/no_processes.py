"""The guard for `make quick`: a test without the mark `processes` fails if it starts one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

STARTERS = ((subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn"), (os, "system"), (BaseProcess, "start"))
"""Every way to start a process from Python: pools, Ray, browsers and servers all use one of these."""

HARMLESS = ("fc-list", "lscpu")  # matplotlib lists fonts, once per machine; numpy.testing 1.26 asks for the CPU


@contextmanager
def no_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STARTERS:
            patch.setattr(owner, name, _refusing(getattr(owner, name)))
        yield


def _refusing(start: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if args and (args[-1][0] if isinstance(args[-1], list) else args[-1]) in HARMLESS:
            return start(*args, **kwargs)
        return pytest.fail("this test starts a process: mark it with @pytest.mark.processes")

    return refuse
