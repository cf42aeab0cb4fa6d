"""One seat per site: it holds the round loop's request and the site's answer, and accepts each answer once.

The loop's thread asks and waits; the network thread delivers answers. A broken link is not a failure: a live process
that reconnects before the deadline gets the request again and continues. A restarted process, a refused message or a
missed deadline is a failure. One process holds a seat at a time, for as long as its stream lives; the deadline closes
the stream of a silent process. A process that wakes up later takes the seat if it is free, and is refused otherwise.
With policy `continue`, a site that missed a deadline must answer a probe before it takes part again.
"""

from __future__ import annotations

import re
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
"""The code for each part of a key that differs."""

MOST_UNASKED = 16
"""Messages of a stream between two answers. An honest site says Alive or Leaving once, and repeats an answer only if
the server repeats its request.
"""

METRIC = re.compile(r"[a-z][a-z0-9_]{0,63}")

Validate = Callable[[str, pb.Upload], Message]


class Silent(MissedExchange):
    """The site missed the deadline."""


class RoundLost(RunError):
    """A site is missing and the policy is to wait: all sites return to the newest committed round."""


class Link(Protocol):
    """One open stream to a site. Thread-safe. Sent messages leave with the next `flush` of any link."""

    def send(self, message: pb.FromServer) -> None: ...
    def refuse(self, refused: Refused) -> None: ...
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
        self._session = ""  # the session of the process that holds the seat
        self._asked: pb.FromServer | None = None  # the newest request: a cache of depth one
        self._awaits: Key | None = None
        self._awaits_upload: bool | None = None  # whether an upload or the end of the round is due; None: either
        self._taken: Key | None = None  # the key of the answer accepted last
        self._answer: Answer | None = None
        self._lost = ""
        self._unasked = 0  # messages of this stream since the last answer
        self._must_save = False
        self._held: set[int] | None = None  # the rounds that the site can return to; None: it starts anywhere
        self.left = False
        self._on_probe = False
        self._asked_at = 0.0
        self.answer_ms = 0.0

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def ready(self) -> bool:
        """Whether the site can be asked to take part in the next round."""
        return self._link is not None and not self._on_probe

    def holds(self, rounds: int) -> bool:
        """Whether the site has said that it can return to its state after `rounds` rounds."""
        with self._lock:
            return self._held is None or rounds in self._held

    @property
    def waited_s(self) -> float:
        """Seconds since the newest request was sent; 0 once the answer has arrived."""
        with self._lock:
            is_pending = self._awaits is not None and self._answer is None
            return time.monotonic() - self._asked_at if is_pending else 0.0

    # called from the network thread

    def refuse_second(self, session: str) -> None:
        """Raises Refused if another process holds the seat. The holder itself may open a new stream."""
        with self._lock:
            if self._link is not None and session != self._session:
                raise Refused(Code.IN_USE, "another process takes part as this site.")

    def connect(self, link: Link, hello: pb.Hello, welcome: pb.Welcome) -> None:
        """Replaces the previous stream by a new one."""
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link, self._session, self.left, self._unasked = link, hello.session, False, 0
            self._held = None if hello.restart or welcome.behind else set(hello.rounds_held) or {0}
            link.send(pb.FromServer(welcome=welcome))
            if self._on_probe:
                link.send(pb.FromServer(probe=pb.Probe()))
            if self._asked is not None and self._can_continue(hello):
                link.send(self._asked)
            else:
                self._lost = "its process was restarted"
            link.flush()
            self._changed.notify_all()

    def disconnect(self, link: Link) -> None:
        with self._lock:
            if self._link is link:
                self._link = None
                self._changed.notify_all()

    def take(self, message: pb.FromSite, link: Link) -> None:
        """Delivers an answer. Raises Refused, and changes nothing, if the message was not requested."""
        kind = message.WhichOneof("body")
        if kind in ("leaving", "alive"):
            with self._lock:
                if link is self._link:
                    self._refuse_flood()
                    self.left = self.left or kind == "leaving"
                    self._on_probe = self._on_probe and kind != "alive"
                    self._changed.notify_all()
            return
        if kind not in ("upload", "done"):
            raise Refused(Code.UNEXPECTED, f"unexpected message {kind}; expected an upload or the end of the round.")
        body: pb.Upload | pb.Done = message.upload if kind == "upload" else message.done
        key = (body.incarnation, body.round, body.exchange)
        with self._lock:
            if link is not self._link:  # a stream that lost the seat: ignore its messages
                return
            if key == self._taken:  # a repeated answer is not applied again; the reply is resent
                self._refuse_flood()
                if self._asked is not None and self._awaits != key and self._link is not None:
                    self._link.send(self._asked)
                    self._link.flush()
                return
            if key != self._awaits:
                self._refuse_unexpected(key)
            if self._awaits_upload is not None and self._awaits_upload != (kind == "upload"):
                due = "an upload" if self._awaits_upload else "the end of the round"
                found = "an upload" if kind == "upload" else "the end of the round"
                raise Refused(Code.OUT_OF_STEP, f"{found} after {key[2]} exchanges; expected {due}.")
            if isinstance(body, pb.Upload):
                answer = Answer(self._validate(self.site, body), body.batch or None)
            else:
                answer = Answer(done=self._checked_done(body))
            if answer.done is not None and answer.done.saved and self._held is not None:
                self._held.add(key[1] + 1)
            self._answer, self._taken, self._unasked = answer, key, 0
            self.answer_ms = (time.monotonic() - self._asked_at) * 1e3
            self._changed.notify_all()

    def refuse(self, reason: str, link: Link) -> None:
        """Ends the site's part in the round."""
        with self._lock:
            if link is self._link and self._awaits is not None:
                self._lost = reason
                self._changed.notify_all()

    # called from the loop's thread

    def ask(self, request: pb.FromServer, awaits: Key | None, upload: bool | None = None) -> None:
        """Queues a request until the next flush, so that requests to all sites wake the network thread once."""
        with self._lock:
            self._asked, self._awaits, self._answer, self._asked_at = request, awaits, None, time.monotonic()
            self._awaits_upload = upload
            if request.WhichOneof("body") == "begin":
                self._must_save = request.begin.save
                if request.begin.restore or self._policy == "continue":  # a restarted process can answer too
                    self._lost = ""
                if request.begin.restore and self._held is None:
                    self._held = {request.begin.round}
            is_over = awaits is not None and self._lost != ""  # the round of a lost site ends before it begins
            if self._link is not None and not is_over:
                self._link.send(request)

    def wait(self) -> Answer:
        """The answer to the newest request."""
        with self._lock:
            if self._answer is None:
                left_s = self._asked_at + self._deadline_s - time.monotonic()
                self._changed.wait_for(lambda: self._answer is not None or self._lost != "", max(left_s, 0.0))
            if self._answer is not None:
                return self._answer
            silent, reason = not self._lost, self._lost or f"no answer within {self._deadline_s:g} s"
            self.drop()
            if self._policy == "wait":
                raise RoundLost(f"{self.site}: {reason}")
            self._on_probe = self._on_probe or silent
        raise Silent(reason) if silent else MissedExchange(reason)

    def expel(self, refused: Refused) -> None:
        """Ends the site's stream with a refusal."""
        with self._lock:
            if self._link is not None:
                self._link.refuse(refused)
                self._link = None

    def drop(self) -> None:
        """Withdraws the pending request, and closes the stream of a silent site."""
        with self._lock:
            silent = self._awaits is not None and self._answer is None and self._lost == ""
            self._asked = self._awaits = None
            if silent and self._link is not None:
                self._link.close()
                self._link = None

    def wait_until(self, condition: Callable[[Seat], bool], timeout_s: float) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: condition(self), timeout_s)

    # internal

    def _can_continue(self, hello: pb.Hello) -> bool:
        """Whether the process behind this stream can answer the newest request."""
        assert self._asked is not None
        kind = self._asked.WhichOneof("body")
        if kind == "finished":
            return True
        if self._lost:  # the loop has given up on the answer, or is about to
            return False
        if kind == "begin" and self._asked.begin.restore:
            return self.holds(self._asked.begin.round)
        if kind == "begin" and self._policy == "continue":
            return True
        if self._awaits is None or hello.incarnation != self._awaits[0]:
            return False
        return hello.round == self._awaits[1] or (kind == "begin" and hello.round + 1 == self._awaits[1])

    def _refuse_flood(self) -> None:
        """Counts a message that answers no request."""
        self._unasked += 1
        if self._unasked > MOST_UNASKED:
            raise Refused(Code.UNEXPECTED, f"more than {MOST_UNASKED} messages that answer no request.")

    def _refuse_unexpected(self, key: Key) -> None:
        if self._awaits is None:
            raise Refused(Code.UNEXPECTED, "unexpected answer: no request is pending.")
        for (code, what), found, expected in zip(PARTS.items(), key, self._awaits, strict=True):
            if found != expected:
                raise Refused(code, f"an answer for {what} {found}; expected {expected}.")

    def _checked_done(self, done: pb.Done) -> pb.Done:
        if self._must_save and not done.saved:
            raise Refused(Code.NOT_SAVED, "the round ended without the requested save.")
        fine = all(0 <= value <= 1 and METRIC.fullmatch(name) for name, value in done.metrics.items())
        if len(done.metrics) > 32 or not fine:
            raise Refused(
                Code.WRONG_METRICS, "invalid metrics; expected at most 32 numbers between 0 and 1 with short names."
            )
        return done
