"""The command line as a user types it: `fedal("run", ...)` in this process, quick because torch is already loaded."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from fedal.cli import main

COMMAND = [str(Path(sys.executable).with_name("fedal"))]

TINY = ("--clients", "2", "--models", "mlp-small", "--iterations", "4", "--set", "tau=2", "--set", "batch_size=8")
"""Settings for a run that takes a fraction of a second."""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def fedal(*words: object) -> Answer:
    """Exit code and output. A traceback would be an exception here."""
    out, err = io.StringIO(), io.StringIO()
    argv, handler = sys.argv, signal.getsignal(signal.SIGINT)
    sys.argv = ["fedal", *map(str, words)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = argv
        signal.signal(signal.SIGINT, handler)
    return Answer(code, out.getvalue(), err.getvalue())
