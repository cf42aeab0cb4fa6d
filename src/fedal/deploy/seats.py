"""One seat per site: what the round loop asks and what comes back, each answer taken once.

The loop's thread asks and waits; the network's thread delivers. A broken link is no failure: a living process that
returns before the deadline is asked again and goes on. A process that lost its place, a refused message or a passed
deadline is one. A seat is for one process at a time: its session holds it for as long as its stream lives, which the
deadline ends when the process is silent. Whoever wakes up after that finds the seat free, or taken and is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.refusals import Code, Refused
from fedal.engine.player import MissedExchange
from fedal.errors import RunError
from fedal.messages import Message

Policy = Literal["wait", "continue"]
Key = tuple[int, int, int]
"""incarnation, round, exchange"""

PARTS = {Code.WRONG_INCARNATION: "incarnation", Code.WRONG_ROUND: "round", Code.WRONG_EXCHANGE: "exchange"}
"""Of a key: what is wrong if they differ."""

Validate = Callable[[str, pb.Upload], Message]


class RoundLost(RunError):
    """A site is missing and the policy is to wait: everybody returns to the newest committed round."""


class Link(Protocol):
    """One open stream to a site. Any thread may call. What is sent leaves with the next `flush` of any link."""

    def send(self, message: pb.FromServer) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Answer(NamedTuple):
    """An upload that passed all checks, or the end of a site's round."""

    message: Message | None = None
    batch: str | None = None
    done: pb.Done | None = None


class Seat:
    """The place of one site in the federation."""

    def __init__(self, site: str, policy: Policy, validate: Validate, deadline_s: float = 60.0) -> None:
        self.site, self._policy, self._validate, self._deadline_s = site, policy, validate, deadline_s
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._link: Link | None = None
        self._session = ""  # of the process that holds the seat
        self._asked: pb.FromServer | None = None  # the newest question: a cache of depth one
        self._awaits: Key | None = None
        self._taken: Key | None = None  # the answer that was taken last
        self._answer: Answer | None = None
        self._lost = ""
        self._must_save = False
        self.left = False
        self._asked_at = 0.0
        self.answer_ms = 0.0
        self.refused = 0

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def waited_s(self) -> float:
        """For how long its answer to the newest question has been awaited; 0 when it is there."""
        with self._lock:
            is_open = self._awaits is not None and self._answer is None
            return time.monotonic() - self._asked_at if is_open else 0.0

    # the network's side

    def refuse_second(self, session: str) -> None:
        """The process that holds the seat may come with a new stream; another may when nobody holds it."""
        with self._lock:
            if self._link is not None and session != self._session:
                raise Refused(Code.IN_USE, "another process takes part as this site.")

    def connect(self, link: Link, hello: pb.Hello, welcome: pb.Welcome) -> None:
        """Takes a new stream in place of the one before."""
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link, self._session, self.left = link, hello.session, False
            link.send(pb.FromServer(welcome=welcome))
            if self._asked is not None and self._may_go_on(hello):
                link.send(self._asked)
            else:
                self._lost = "its process was started anew"
            link.flush()
            self._changed.notify_all()

    def disconnect(self, link: Link) -> None:
        with self._lock:
            if self._link is link:
                self._link = None
                self._changed.notify_all()

    def take(self, message: pb.FromSite, link: Link) -> None:
        """Delivers an answer; raises Refused, with nothing changed, for whatever was not asked."""
        kind = message.WhichOneof("body")
        if kind == "leaving":
            with self._lock:
                self.left = self.left or link is self._link
                self._changed.notify_all()
            return
        if kind not in ("upload", "done"):
            raise Refused(Code.UNEXPECTED, f"a message of kind {kind}; expected an upload or the end of the round.")
        body: pb.Upload | pb.Done = message.upload if kind == "upload" else message.done
        key = (body.incarnation, body.round, body.exchange)
        with self._lock:
            if link is not self._link:  # a stream that lost the seat: what it still says counts for nothing
                return
            if key == self._taken:  # a repeated answer is never applied: its reply is sent again
                if self._asked is not None and self._awaits != key and self._link is not None:
                    self._link.send(self._asked)
                    self._link.flush()
                return
            if key != self._awaits:
                self._refuse_unasked(key)
            if isinstance(body, pb.Upload):
                answer = Answer(self._validate(self.site, body), body.batch or None)
            else:
                answer = Answer(done=self._checked_done(body))
            self._answer, self._taken = answer, key
            self.answer_ms = (time.monotonic() - self._asked_at) * 1e3
            self._changed.notify_all()

    def refuse(self, reason: str, link: Link) -> None:
        """Its stream sent something that was refused: whoever waits for it need not wait on."""
        with self._lock:
            self.refused += 1
            if link is self._link and self._awaits is not None and self._answer is None:
                self._lost = reason
                self._changed.notify_all()

    # the loop's side

    def ask(self, question: pb.FromServer, awaits: Key | None) -> None:
        """The question leaves with the next flush: the network is woken once for those to all sites."""
        with self._lock:
            self._asked, self._awaits, self._answer, self._asked_at = question, awaits, None, time.monotonic()
            if question.WhichOneof("body") == "begin":
                self._must_save = question.begin.save
                if question.begin.restore or self._policy == "continue":  # any process can follow
                    self._lost = ""
            if self._link is not None:
                self._link.send(question)

    def wait(self) -> Answer:
        """The answer to the newest question."""
        with self._lock:
            if self._answer is None:
                left_s = self._asked_at + self._deadline_s - time.monotonic()
                self._changed.wait_for(lambda: self._answer is not None or self._lost != "", max(left_s, 0.0))
            if self._answer is not None:
                return self._answer
            reason = self._lost or f"no answer within {self._deadline_s:g} s"
            self.drop()
        if self._policy == "wait":
            raise RoundLost(f"{self.site}: {reason}")
        raise MissedExchange(reason)

    def drop(self) -> None:
        """Asks nothing more of it, and closes the stream of a site that is silent."""
        with self._lock:
            silent = self._awaits is not None and self._answer is None and self._lost == ""
            self._asked = self._awaits = None
            if silent and self._link is not None:
                self._link.close()
                self._link = None

    def wait_until(self, condition: Callable[[Seat], bool], timeout_s: float) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: condition(self), timeout_s)

    # inside

    def _may_go_on(self, hello: pb.Hello) -> bool:
        """Whether the process behind this stream can answer the newest question."""
        assert self._asked is not None
        kind = self._asked.WhichOneof("body")
        if kind == "finished":
            return True
        if self._lost:  # whoever waits for the answer gives up, or is about to: nobody would take it
            return False
        if kind == "begin" and (self._asked.begin.restore or self._policy == "continue"):
            return True
        if self._awaits is None or hello.incarnation != self._awaits[0]:
            return False
        return hello.round == self._awaits[1] or (kind == "begin" and hello.round + 1 == self._awaits[1])

    def _refuse_unasked(self, key: Key) -> None:
        if self._awaits is None:
            raise Refused(Code.UNEXPECTED, "an answer to nothing: no question is open.")
        for (code, what), found, wanted in zip(PARTS.items(), key, self._awaits, strict=True):
            if found != wanted:
                raise Refused(code, f"an answer for {what} {found}; the present one is {wanted}.")

    def _checked_done(self, done: pb.Done) -> pb.Done:
        if self._must_save and not done.saved:
            raise Refused(Code.NOT_SAVED, "the end of a round that should have been saved and was not.")
        if len(done.metrics) > 32 or not all(0 <= value <= 1 for value in done.metrics.values()):
            raise Refused(Code.WRONG_METRICS, "metrics are at most 32 numbers between 0 and 1.")
        return done
