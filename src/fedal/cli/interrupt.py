"""Ctrl-C: the first asks, the second stops."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable


def stop_on_request(
    tell: Callable[[str], None] = lambda text: print(f"\n{text}", file=sys.stderr, flush=True),
    signals: Iterable[signal.Signals] = (signal.SIGINT,),
) -> Callable[[], bool]:
    """Whether a Ctrl-C has asked the run to stop after its round; the second stops at once."""
    asked: list[bool] = []

    def interrupt(*_: object) -> None:
        if asked:
            os._exit(130)
        asked.append(True)
        tell("finishing the round, then saving; Ctrl-C again stops at once")

    for number in signals:
        signal.signal(number, interrupt)
    return lambda: bool(asked)
