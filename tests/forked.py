"""The command line in processes forked from one that has imported torch: they start at once and can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(  # nothing that starts threads (no gRPC): threads do not survive a fork
    ["sklearn.datasets", "torch._dynamo", "fedal.cli", "fedal.simulate.assemble", "fedal.methods"]
)


class Forked:
    """`fedal WORDS` in its own process, with the part of subprocess.Popen's interface that these tests need."""

    def __init__(self, words: list[str], folder: Path, log: Path) -> None:
        self._process: BaseProcess = FORKS.Process(
            target=_run, args=(words, folder, log, dict(os.environ)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("fedal", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()


def _run(words: list[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(folder)
    sys.argv = ["fedal", *words]
    from fedal.cli import main

    main()
