"""Ctrl-C: the first asks, the second stops."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable


class StopOnce:
    """The first Ctrl-C asks the run to stop after its round, the second stops at once."""

    def __init__(
        self,
        tell: Callable[[str], None] = lambda text: print(f"\n{text}", file=sys.stderr, flush=True),
        signals: tuple[signal.Signals, ...] = (signal.SIGINT,),
    ) -> None:
        self._asked, self._tell = False, tell
        for number in signals:
            signal.signal(number, self._interrupt)

    def requested(self) -> bool:
        return self._asked

    def _interrupt(self, *_: object) -> None:
        if self._asked:
            os._exit(130)
        self._asked = True
        self._tell("finishing the round, then saving; Ctrl-C again stops at once")
