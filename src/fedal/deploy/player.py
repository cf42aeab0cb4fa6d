"""A site as the server's round loop sees it, and what goes with that: its wire, and how sites are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.codec import Reader, encode
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat, Validate
from fedal.engine.loop import Item, Result
from fedal.engine.player import PlayerUploads
from fedal.learners.base import State
from fedal.messages import Message
from fedal.wire import Wire


class SitePlayer:
    """A client at a site. The site keeps its own state."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.names: tuple[str, ...] = (seat.site,)
        self.next_round = pb.Begin()  # what the site will be told when the round begins
        self._exchange = 0
        self.metrics: dict[str, float] = {}  # of the newest round, where the site shares them

    def begin(self, t: int) -> None:
        self._exchange, self.metrics = 0, {}
        self._ask(pb.FromServer(begin=self.next_round))

    def give(self, replies: Mapping[str, Message]) -> None:
        question = pb.FromServer()
        answer = question.reply  # written in place: no copy
        answer.incarnation, answer.round = self.next_round.incarnation, self.next_round.round
        answer.exchange = self._exchange
        encode(replies[self._seat.site], answer.payload)
        self._exchange += 1
        self._ask(question)

    def _ask(self, question: pb.FromServer) -> None:
        self._seat.ask(question, (self.next_round.incarnation, self.next_round.round, self._exchange))

    def take(self) -> PlayerUploads | None:
        answer = self._seat.wait()
        if answer.message is not None:
            return PlayerUploads({self._seat.site: answer.message}, answer.batch)
        self.metrics = dict(answer.done.metrics) if answer.done else {}
        return None

    def forget(self) -> None:
        """The site drops its pending pass when it hears of the next round."""

    def states(self) -> dict[str, Callable[[], State]]:
        return {}

    def load_states(self, states: Mapping[str, State]) -> None: ...


def upload_check(reader: Reader, expected_batch: Callable[[int, int], str | None]) -> Validate:
    """Reads the upload of a site; raises Refused unless it is what this exchange is about."""
    expected_in = lru_cache(maxsize=1)(expected_batch)  # one for all uploads of an exchange

    def check(site: str, upload: pb.Upload) -> Message:
        message = reader.read(upload.payload)
        expected = expected_in(upload.round, upload.exchange)
        if (upload.batch or None if message.about_batch else None) != expected:
            raise Refused(Code.WRONG_BATCH, f"an answer about batch {upload.batch[:40]!r}; expected {expected}.")
        return message

    return check


class ReadWire(Wire):
    """The server's end: an upload was checked and copied when it was read, a reply is copied when it is written."""

    def up(self, client_id: str, message: object, batch: str | None, expected_batch: str | None) -> Message:
        assert isinstance(message, Message)
        for tensor in message.tensors().values():
            self.up_bytes[client_id] += tensor.nbytes
        return message

    def down(self, client_id: str, message: object) -> Message:
        return self._inspected("down", client_id, message, self.down_bytes)


class InTurn:
    """Waits for one site after the other: all have been asked before, so they work side by side.

    A thread for each would have to be woken for each answer, which costs more than the exchange. The last that was
    asked is waited for first: it is mostly the last to answer, so this thread is woken once.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], cost: Callable[[Item], float] | None = None
    ) -> list[Result]:
        """All have answered or failed before an error of the first that failed is raised."""
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
