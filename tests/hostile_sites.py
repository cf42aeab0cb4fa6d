"""Sites with a valid certificate that take part honestly, until they misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from deployments import Rehearsal, certs, pb
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.site import Site

NAME = "client-03"

Behave = Callable[["Hostile", pb.FromSite], list[pb.FromSite | bytes]]
"""The honest answer -> what the site sends instead."""


class Gone(Exception):
    """The site leaves without a word."""


class Hostile(Site):
    """A site that does as it should up to one answer, and misbehaves from there on."""

    said: list[pb.FromSite]
    behave: Behave
    at: tuple[int, int]

    def _answers(self, message: pb.FromServer, channel: Any) -> Iterator[pb.FromSite]:
        for answer in super()._answers(message, channel):
            kind = answer.WhichOneof("body")
            if kind in ("upload", "done"):
                body = answer.upload if kind == "upload" else answer.done
                if (body.round, body.exchange) >= self.at:
                    yield from self.behave(self, answer)  # type: ignore[misc]
                    continue
                self.said.append(answer)
            yield answer


class Attacker:
    """Runs the hostile site, again and again, until the server does not admit it any more."""

    def __init__(self, rehearsal: Rehearsal, behave: Behave, at: tuple[int, int], **changes: Any) -> None:
        certs.issue_client(rehearsal.folder / "certs", NAME, rehearsal.plan.public_sha256)
        self._plan = replace(rehearsal.site_plan(NAME), **{"patience_s": 5.0, **changes})
        self._behave, self._at, self._said = behave, at, list[pb.FromSite]()
        self.refusals: list[str] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopped.is_set() and Code.QUARANTINED not in self.refusals:
            site = Hostile(self._plan, lambda text: None)
            site.said, site.behave, site.at = self._said, self._behave, self._at
            try:
                site.run()
                return
            except Refused as refused:
                self.refusals.append(refused.code)
            except Gone:
                return
