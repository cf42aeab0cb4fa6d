"""Ctrl-C: ends a command that still loads; later, the first asks for a stop after the round, the second stops at once.

This module loads first and quickly, because until its handler is installed Ctrl-C shows Python's traceback.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in fedal/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

IMPORTS = "<frozen importlib"  # the file name in the frames of Python's import system


def end_quietly_while_loading() -> None:
    """Makes Ctrl-C end the process at once while a module is imported, and raise KeyboardInterrupt otherwise.

    In the middle of an import an exception is not safe: libraries swallow it, or report it as a broken installation.
    """
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTS):
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def stop_on_request(
    notify: Callable[[str], None] = lambda text: print(f"\n{text}", file=sys.stderr, flush=True),
    signals: Iterable[signal.Signals] = (signal.SIGINT,),
) -> Callable[[], bool]:
    """Returns a function that tells whether a Ctrl-C has requested a stop. A second Ctrl-C exits at once."""
    requested: list[bool] = []

    def interrupt(*_: object) -> None:
        if requested:
            os._exit(130)
        requested.append(True)
        notify("finishing the round, then saving; press Ctrl-C again to stop at once")

    for number in signals:
        signal.signal(number, interrupt)
    return lambda: bool(requested)
