"""Containment: one site's content never ends the server.

The checks of the reader should refuse all content that a server's half cannot use. If a half raises all the same, this
finds the site whose uploads cause it: it runs the round again on a copy of the half, with the uploads of one site
alone. The service then runs the round again without that site. If no single site is the cause, the half has a defect.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from fedal.durable import write_atomically
from fedal.learners.base import State
from fedal.methods.server import ServerLogic, Uploads
from fedal.wire import Wire


class Containment:
    """The server's state at the start of the current round, and the uploads of the round so far."""

    def __init__(
        self,
        server: ServerLogic,
        roster: Sequence[str],
        make_copy: Callable[[], ServerLogic],
        make_wire: Callable[[], Wire],
    ) -> None:
        self._server, self._roster, self._make_copy, self._make_wire = server, roster, make_copy, make_wire
        self._start: State = {}
        self._uploads: list[Uploads] = []

    def begin(self) -> None:
        """Keeps a copy of the server's state. Called before every round."""
        self._start, self._uploads = self._server.state_dict(), []

    def keep(self, uploads: Uploads) -> None:
        """Keeps the uploads of one exchange. Called before the half gets them."""
        self._uploads.append(uploads)

    def undo(self) -> None:
        """Returns the server's half to the start of the round."""
        self._server.load_state_dict(self._start)

    def is_cause(self, t: int) -> bool:
        """Whether the uploads of the round make a copy of the half raise."""
        return self._raises(t, self._roster)

    def culprit(self, t: int) -> str | None:
        """The site whose uploads alone make a copy of the half raise, or the only one without which it does not."""
        sites = [site for site in self._roster if any(site in uploads for uploads in self._uploads)]
        alone = [site for site in sites if self._raises(t, [site])]
        if alone and len(alone) < len(sites):
            return alone[0]  # the round is run again, which finds the others one by one
        needed = [site for site in sites if not self._raises(t, [other for other in sites if other != site])]
        return needed[0] if len(needed) == 1 else None

    def write_uploads(self, path: Path) -> None:
        """Writes the uploads of the round to an .npz file, for a report of the defect."""
        arrays = {
            f"{exchange}/{site}/{type(message).__name__}/{name}": tensor.numpy(force=True)
            for exchange, uploads in enumerate(self._uploads)
            for site, message in uploads.items()
            for name, tensor in message.tensors().items()
        }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_atomically(path, buffer.getvalue())

    def _raises(self, t: int, sites: Iterable[str]) -> bool:
        chosen, half, wire = set(sites), self._make_copy(), self._make_wire()
        half.load_state_dict(self._start)
        try:
            running = half.round(t, self._roster)
            next(running)
            for uploads in self._uploads:
                mine = {site: message for site, message in uploads.items() if site in chosen}
                if not mine:
                    return False
                replies, ended = _replies(running, mine)
                for site in mine:
                    wire.down(site, replies[site])
                if ended:
                    return False
        except Exception:  # any error of the half, or of a reply that its wire refuses, is the answer here
            return True
        return False


def _replies(running: object, uploads: Uploads) -> tuple[dict[str, object], bool]:
    """The half's replies, and whether its round has ended."""
    try:
        return running.send(uploads), False  # type: ignore[attr-defined]
    except StopIteration as stop:
        return stop.value, True
