"""Counts refusals by caller, and logs them at a limited rate: no caller can fill the disk with log lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from fedal.deploy.refusals import Refused

WINDOW_S = 60.0
LINES = 10  # per event, caller, code and window


class RefusalLog:
    """Names come from certificates or from the roster, so there are few. Not for more than one thread at a time: a
    lost count is the worst that happens."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._windows: dict[tuple[str, str, Any], tuple[float, int]] = {}  # event, site, code -> begin, lines
        self.counts: Counter[str] = Counter()

    def add(self, site: str, refused: Refused) -> None:
        self.counts[site] += 1
        self.limited("refused", site, code=refused.code, text=refused.text, count=self.counts[site])

    def limited(self, event: str, site: str, **fields: Any) -> None:
        """Logs an event that a caller can cause as often as it likes."""
        key, now = (event, site, fields.get("code")), time.monotonic()
        began, lines = self._windows.get(key, (now, 0))
        if now - began >= WINDOW_S:
            began, lines = now, 0
        self._windows[key] = began, lines + 1
        if lines < LINES:
            last = {"muted": "further lines of this kind, for a minute"} if lines + 1 == LINES else {}
            self._log(event, site=site, **fields, **last)
