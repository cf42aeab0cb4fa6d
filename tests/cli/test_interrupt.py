"""Ctrl-C before a command is ready: no traceback and exit code 130, at whatever import it arrives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = """
import os, signal, sys

moment, imports = int(sys.argv[1]), 0
sys.argv = ["fedal", *sys.argv[2:]]

def count(event, arguments):
    global imports
    if event == "import":
        imports += 1
        if imports == moment:
            os.kill(os.getpid(), signal.SIGINT)

from fedal.cli import main
sys.addaudithook(count)
main()
"""


def interrupted(moment: int, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that gets Ctrl-C at its n-th import."""
    command = [sys.executable, "-P", "-c", INTERRUPTED, str(moment), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.processes
@pytest.mark.parametrize("moment", [1, 2, 40, 400, 900])
def test_an_early_interrupt_shows_no_traceback(moment: int, tmp_path: Path) -> None:
    """The first moments fall into the import of the commands, the last into that of torch."""
    ended = interrupted(moment, "run", "--clients", "2", "--iterations", "5", "--out", "run", folder=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
    assert not (tmp_path / "run").exists()
