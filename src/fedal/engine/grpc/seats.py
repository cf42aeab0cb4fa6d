"""One seat per site: what the round loop asks and what comes back, each answer taken once.

The loop's threads ask and wait; the network's thread delivers. A broken link is no failure: a living process that
returns before the deadline is asked again and goes on. A process that lost its place, a refused message or a passed
deadline is one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from fedal.engine.grpc import fedal_pb2 as pb
from fedal.engine.grpc.codec import encode
from fedal.engine.grpc.refusals import Code, Refused
from fedal.engine.loop import MissedExchange
from fedal.errors import RunError
from fedal.messages import Message
from fedal.methods.base import ClientLogic, ClientRound

Policy = Literal["wait", "continue"]
Key = tuple[int, int, int]
"""incarnation, round, exchange"""

Validate = Callable[[str, pb.Upload], Message]


class RoundLost(RunError):
    """A site is missing and the policy is to wait: everybody returns to the newest committed round."""


class Link(Protocol):
    """One open stream to a site. Any thread may call."""

    def send(self, message: pb.FromServer) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Answer:
    """An upload that passed all checks, or the end of a site's round."""

    message: Message | None = None
    batch: str | None = None
    done: pb.Done | None = None


class Seat:
    """The place of one site in the federation."""

    def __init__(self, site: str, policy: Policy, validate: Validate) -> None:
        self.site, self._policy, self._validate = site, policy, validate
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._asked: pb.FromServer | None = None  # the newest question: a cache of depth one
        self._awaits: Key | None = None
        self._taken: Key | None = None  # the answer that was taken last
        self._answer: Answer | None = None
        self._lost = ""
        self._must_save = False
        self._left = False
        self._asked_at = 0.0
        self.answer_ms = 0.0
        self.refused = 0

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def left(self) -> bool:
        return self._left

    # the network's side

    def connect(self, link: Link, hello: pb.Hello) -> Link | None:
        """Takes a new stream; gives the one that it replaces."""
        with self._changed:
            before, self._link, self._left = self._link, link, False
            if self._asked is not None and self._may_go_on(hello):
                link.send(self._asked)
            else:
                self._lost = "its process was started anew"
            self._changed.notify_all()
            return before

    def disconnect(self, link: Link) -> None:
        with self._changed:
            if self._link is link:
                self._link = None
                self._changed.notify_all()

    def take(self, message: pb.FromSite) -> None:
        """Delivers an answer; raises Refused, with nothing changed, for whatever was not asked."""
        kind = message.WhichOneof("body")
        if kind == "leaving":
            with self._changed:
                self._left = True
                self._changed.notify_all()
            return
        if kind not in ("upload", "done"):
            raise Refused(Code.UNEXPECTED, f"a message of kind {kind}; expected an upload or the end of the round.")
        body: pb.Upload | pb.Done = message.upload if kind == "upload" else message.done
        key = (body.incarnation, body.round, body.exchange)
        with self._changed:
            if key == self._taken:  # a repeated answer is never applied: its reply is sent again
                if self._asked is not None and self._awaits != key and self._link is not None:
                    self._link.send(self._asked)
                return
            self._refuse_unasked(key)
            if isinstance(body, pb.Upload):
                answer = Answer(self._validate(self.site, body), body.batch or None)
            else:
                answer = Answer(done=self._checked_done(body))
            self._answer, self._taken = answer, key
            self.answer_ms = (time.monotonic() - self._asked_at) * 1e3
            self._changed.notify_all()

    def refuse(self, reason: str) -> None:
        """Its stream sent something that was refused: whoever waits for it need not wait on."""
        with self._changed:
            self.refused += 1
            if self._awaits is not None and self._answer is None:
                self._lost = reason
                self._changed.notify_all()

    # the loop's side

    def ask(self, question: pb.FromServer, awaits: Key | None) -> None:
        with self._changed:
            self._asked, self._awaits, self._answer, self._asked_at = question, awaits, None, time.monotonic()
            if question.WhichOneof("body") == "begin":
                self._must_save = question.begin.save
                if question.begin.restore or self._policy == "continue":  # any process can follow
                    self._lost = ""
            if self._link is not None:
                self._link.send(question)

    def wait(self, deadline_s: float) -> Answer:
        """The answer to the newest question."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._lost != "", deadline_s)
            if self._answer is not None:
                return self._answer
            reason = self._lost or f"no answer within {deadline_s:g} s"
            self.drop()
        if self._policy == "wait":
            raise RoundLost(f"{self.site}: {reason}")
        raise MissedExchange(reason)

    def drop(self) -> None:
        """Asks nothing more of it, and closes the stream of a site that is silent."""
        with self._changed:
            silent = self._awaits is not None and self._answer is None and self._lost == ""
            self._asked = self._awaits = None
            if silent and self._link is not None:
                self._link.close()
                self._link = None

    def wait_until(self, condition: Callable[[Seat], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), timeout_s)

    # inside

    def _may_go_on(self, hello: pb.Hello) -> bool:
        """Whether the process behind this stream can answer the newest question."""
        assert self._asked is not None
        kind = self._asked.WhichOneof("body")
        if kind == "finished" or (kind == "begin" and (self._asked.begin.restore or self._policy == "continue")):
            return True
        if self._awaits is None or hello.incarnation != self._awaits[0]:
            return False
        return hello.round == self._awaits[1] or (kind == "begin" and hello.round + 1 == self._awaits[1])

    def _refuse_unasked(self, key: Key) -> None:
        if self._awaits is None:
            raise Refused(Code.UNEXPECTED, "an answer to nothing: no question is open.")
        codes = (Code.WRONG_INCARNATION, Code.WRONG_ROUND, Code.WRONG_EXCHANGE)
        for code, what, found, wanted in zip(
            codes, ("incarnation", "round", "exchange"), key, self._awaits, strict=True
        ):
            if found != wanted:
                raise Refused(code, f"an answer for {what} {found}; the present one is {wanted}.")

    def _checked_done(self, done: pb.Done) -> pb.Done:
        if self._must_save and not done.saved:
            raise Refused(Code.NOT_SAVED, "the end of a round that should have been saved and was not.")
        if len(done.metrics) > 32 or not all(0 <= value <= 1 for value in done.metrics.values()):
            raise Refused(Code.WRONG_METRICS, "metrics are at most 32 numbers between 0 and 1.")
        return done


class RemoteClient(ClientLogic):
    """A site as the round loop sees it: a coroutine that yields what the site uploads."""

    def __init__(self, seat: Seat, deadline_s: float) -> None:
        self.client_id, self._seat, self._deadline_s = seat.site, seat, deadline_s
        self.learner = cast(Any, _Elsewhere())
        self._batch = _Elsewhere()
        self._public = cast(Any, self._batch)
        self.begin = pb.Begin()
        self.metrics: dict[str, float] = {}

    def round(self, t: int) -> ClientRound:
        self.metrics = {}
        incarnation = self.begin.incarnation
        self._seat.ask(pb.FromServer(begin=self.begin), (incarnation, t, 0))
        for message, exchange in self._uploads():
            reply = yield message
            question = pb.Reply(incarnation=incarnation, round=t, exchange=exchange, payload=encode(reply))
            self._seat.ask(pb.FromServer(reply=question), (incarnation, t, exchange + 1))

    def _uploads(self) -> Iterator[tuple[Message, int]]:
        exchange = 0
        while True:
            answer = self._seat.wait(self._deadline_s)
            if answer.message is None:
                self.metrics = dict(answer.done.metrics) if answer.done else {}
                return
            self._batch.drawn = answer.batch
            yield answer.message, exchange
            exchange += 1


class _Elsewhere:
    """Stands for what only the site has."""

    drawn: str | None = None

    def forget(self) -> None:
        """The site drops its pending pass when it hears of the next round."""
