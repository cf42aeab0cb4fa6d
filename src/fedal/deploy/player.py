"""A site from the view of the server's round loop, with its wire and the loop that waits for sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.codec import Reader, encode
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat, Silent, Validate
from fedal.deploy.strikes import Strikes
from fedal.engine.loop import Item, Result
from fedal.engine.player import MissedExchange, PlayerUploads
from fedal.learners.base import State
from fedal.messages import Message
from fedal.methods.server import ServerLogic
from fedal.wire import Wire


@dataclass
class Due:
    """What the server's half expects of all sites next."""

    upload: bool = True  # or the end of the round


class SitePlayer:
    """A client that runs at a site. The site keeps its own state."""

    def __init__(self, seat: Seat, due: Due, strikes: Strikes) -> None:
        self._seat, self._due, self._strikes = seat, due, strikes
        self.names: tuple[str, ...] = (seat.site,)
        self.next_round = pb.Begin()  # sent to the site when the round begins
        self._exchange = 0
        self.missed: int | None = None  # the first exchange of the newest round that the site missed
        self.metrics: dict[str, float] = {}  # of the newest round, if the site shares them

    @property
    def answered(self) -> int:
        """The number of replies that the site was given in the newest round."""
        return self._exchange

    def begin(self, t: int) -> None:
        self._exchange, self.missed, self.metrics = 0, None, {}
        self._ask(pb.FromServer(begin=self.next_round))

    def give(self, replies: Mapping[str, Message]) -> None:
        request = pb.FromServer()
        reply = request.reply  # written in place: no copy
        reply.incarnation, reply.round = self.next_round.incarnation, self.next_round.round
        reply.exchange = self._exchange
        encode(replies[self._seat.site], reply.payload)
        self._exchange += 1
        self._ask(request)

    def _ask(self, request: pb.FromServer) -> None:
        key = (self.next_round.incarnation, self.next_round.round, self._exchange)
        self._seat.ask(request, key, self._due.upload)

    def take(self) -> PlayerUploads | None:
        try:
            answer = self._seat.wait()
        except MissedExchange as missed:
            self.missed = self._exchange
            if isinstance(missed, Silent):
                self._strikes.absent(self._seat.site, str(missed))
            raise
        if answer.message is not None:
            return PlayerUploads({self._seat.site: answer.message}, answer.batch)
        self.metrics = dict(answer.done.metrics) if answer.done else {}
        return None

    def forget(self) -> None:
        """Does nothing: the site drops its pending pass when the next round begins."""

    def observed(self) -> dict[str, dict[str, float]]:
        """Nothing: what a client's half observes may describe its private data, so it never leaves the site."""
        return {}

    def states(self) -> dict[str, Callable[[], State]]:
        return {}

    def load_states(self, states: Mapping[str, State]) -> None: ...


def upload_check(reader: Reader, server: ServerLogic) -> Validate:
    """Returns a function that reads a site's upload and raises Refused unless it belongs to this exchange."""
    expected_in = lru_cache(maxsize=1)(server.expected_batch)  # the same for all uploads of an exchange

    def check(site: str, upload: pb.Upload) -> Message:
        message = reader.read(upload.payload)
        expected = expected_in(upload.round, upload.exchange)
        if message.about_batch != (expected is not None) or (upload.batch or None) != expected:
            found = f"batch {upload.batch[:40]!r}" if message.about_batch else "no batch"
            raise Refused(Code.WRONG_BATCH, f"{type(message).__name__} for {found}; expected {expected}.")
        try:
            server.refuse_unfit(site, message, upload.round, upload.exchange)
        except Exception as error:  # whatever it is, this upload caused it
            raise Refused(Code.CONTENT, f"{type(message).__name__}: {error}") from None
        return message

    return check


class ReadWire(Wire):
    """The server's end of the wire: reading has checked and copied each upload, and writing copies each reply."""

    def up(self, client_id: str, message: object, batch: str | None, expected_batch: str | None) -> Message:
        assert isinstance(message, Message)
        for tensor in message.tensors().values():
            self.up_bytes[client_id] += tensor.nbytes
        return message

    def down(self, client_id: str, message: object) -> Message:
        return self._inspected("down", client_id, message, self.down_bytes)


class InTurn:
    """Waits for one site after the other. All requests are sent first, so the sites work in parallel.

    With a thread per site, each answer would wake a thread, which costs more than the exchange. The wait starts with
    the site that was asked last: it usually answers last, so this thread wakes up once.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], cost: Callable[[Item], float] | None = None
    ) -> list[Result]:
        """The results in order. Raises the error of the first that failed, after all have answered or failed."""
        results: list[Result] = []
        failures: list[Exception] = []
        self._flush()
        for item in reversed([*items]):
            try:
                results.append(function(item))
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[-1]
        return results[::-1]
