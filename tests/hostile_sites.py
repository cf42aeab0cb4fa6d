"""Sites with a valid certificate that take part honestly, until they misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

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
        plan = rehearsal.plan
        certs.issue_client(rehearsal.folder / "certs", NAME, plan.public_sha256, contract=plan.contract)
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


# ways to misbehave


def with_tensor(index: int, change: Callable[[Any], None], dtype: str = "float32") -> Behave:
    def behave(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
        if answer.WhichOneof("body") == "upload":
            tensor = answer.upload.payload.tensors[index]
            values = np.frombuffer(tensor.data, dtype).copy()
            change(values)
            tensor.data = values.tobytes()
        return [answer]

    return behave


def put(value: float) -> Callable[[Any], None]:
    return lambda values: values.__setitem__(0, value)


def zero(values: Any) -> None:
    values.fill(0)


def ones(values: Any) -> None:
    values.fill(255)


def with_number(name: str, value: int) -> Behave:
    def behave(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
        if answer.WhichOneof("body") == "upload":
            answer.upload.payload.numbers[name] = value
        return [answer]

    return behave


def done_for_upload(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    up = answer.upload
    return [pb.FromSite(done=pb.Done(incarnation=up.incarnation, round=up.round, exchange=up.exchange, saved=True))]


def upload_for_done(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    if answer.WhichOneof("body") == "done":
        end, upload = answer.done, site.said[0].upload
        answer = pb.FromSite(upload=upload)
        answer.upload.incarnation, answer.upload.round, answer.upload.exchange = (
            end.incarnation,
            end.round,
            end.exchange,
        )
    return [answer]


def wrong_batch(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    answer.upload.batch = "0" * 16
    return [answer]


def replay(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    return [site.said[0]]


def silent(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    return []


def leave(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    raise Gone


def repeated(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    """Answers as it should, and says so again and again."""
    return [answer] * 1000


def babbling(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    """Answers as it should, after a flood of messages that nobody asked for."""
    return [*[pb.FromSite(alive=pb.Alive()), pb.FromSite(leaving=pb.Leaving())] * 500, answer]


def second_hello(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    return [pb.FromSite(hello=pb.Hello(site=NAME))]


def unsaved(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    if answer.WhichOneof("body") == "done":
        answer.done.saved = False
    return [answer]


def boastful(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
    """Metrics whose name would fill the record."""
    if answer.WhichOneof("body") == "done":
        answer.done.metrics["x" * 1900] = 0.5
    return [answer]
