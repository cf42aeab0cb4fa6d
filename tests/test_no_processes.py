"""A test without the mark `processes` cannot start one by any means."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest

from forked import FORKS

MARK = "mark it with @pytest.mark.processes"


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: os.system("true"),
        lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
        lambda: os.fork() or os._exit(0),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: FORKS.Process(target=print).start(),
        lambda: ProcessPoolExecutor(1).submit(print).result(),
    ],
    ids=["subprocess", "shell", "posix_spawn", "fork", "spawn", "forkserver", "pool"],
)
def test_starting_a_process_fails_and_names_the_mark(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=MARK):
        start()


@pytest.mark.processes
def test_with_the_mark_processes_start() -> None:
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(7)"], check=False).returncode == 7
