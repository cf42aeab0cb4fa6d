"""The `fedal` command: one file per group of commands."""

from __future__ import annotations

import signal
import sys

from fedal.cli.interrupt import end_quietly_while_loading


def main() -> None:
    """Runs the command that the user typed. Ctrl-C ends it with exit code 130 and without a traceback.

    Loading the commands takes part of a second, so the handler comes first. When the command has ended, nothing is left
    to clean up, and Python's own end would show a traceback: from then on the system ends the process.
    """
    end_quietly_while_loading()
    try:
        from fedal.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
