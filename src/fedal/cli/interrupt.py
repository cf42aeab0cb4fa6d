"""Ctrl-C: the first requests a stop after the round, the second stops at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable


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
