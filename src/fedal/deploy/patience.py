"""How long a site tries again without getting anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedal.deploy.refusals import Refused

RETRY_S = (0.2, 0.5, 1.0, 2.0)


class Patience:
    """Waits between attempts, and gives up when all have failed for too long."""

    def __init__(self, seconds: float, notify: Callable[[str], None]) -> None:
        self._seconds, self._notify = seconds, notify
        self.progress()

    def progress(self) -> None:
        """The last attempt led somewhere: an interruption after it is a new one."""
        self._since, self._attempt, self._notified = time.monotonic(), 0, False

    def wait(self, obstacle: Refused | None = None) -> None:
        """Waits before the next attempt. Raises the obstacle if there has been no progress for too long."""
        if obstacle is not None:
            if time.monotonic() - self._since > self._seconds:
                raise obstacle
            if not self._notified:
                self._notify(f"{obstacle.text} Trying again.")
                self._notified = True
        time.sleep(RETRY_S[min(self._attempt, len(RETRY_S) - 1)])
        self._attempt += 1
