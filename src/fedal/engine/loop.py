"""The one round loop: joins the clients' coroutines and the server's over the wire."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedal.errors import FedalError, OutOfStepError, RunError
from fedal.messages import Message
from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.server import Replies, ServerLogic, ServerRound, Uploads
from fedal.wire import Wire

IsAbsent = Callable[[str, int], bool]
"""Whether a client misses an exchange of a round."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Whatever applies a function to many clients at once and gives the results in order.

    `cost` says how long an item will probably take, for whoever can make use of it.
    """

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], cost: Callable[[Item], float] | None = None
    ) -> list[Result]: ...


class MissedExchange(Exception):
    """Raised by the coroutine of a client that is out of reach: it sits out the rest of the round."""


@dataclass
class _Turn:
    """One client, or one stack of clients, in one round: its coroutine, what goes in next, what came out.

    An upload of None says that the coroutine ended.
    """

    client_ids: list[str]
    logic: ClientLogic
    round: ClientRound
    reply: Message | None = None
    upload: Message | None = None
    missed: bool = False

    def about(self) -> str | None:
        """The public batch that its upload speaks of."""
        public, upload = self.logic._public, self.upload
        return public.drawn if public is not None and isinstance(upload, Message) and upload.about_batch else None

    def uploads(self) -> list[Message | None]:
        """What each client says."""
        if len(self.client_ids) > 1 and isinstance(self.upload, Message):
            return [*self.upload.split(len(self.client_ids))]
        return [self.upload] * len(self.client_ids)

    def receive(self, replies: list[Message]) -> None:
        self.reply = Message.join(replies) if len(replies) > 1 else replies[0]


class Federation:
    """Clients, server and wire of one run. `observe` sees every exchange's uploads, for the record."""

    def __init__(
        self,
        clients: Mapping[str, ClientLogic],
        server: ServerLogic,
        wire: Wire,
        workers: Workers,
        observe: Callable[[Uploads], None] = lambda uploads: None,
    ) -> None:
        self.clients, self.server, self.wire = dict(clients), server, wire
        self._workers, self._observe = workers, observe
        self._seconds: dict[str, float] = {}  # what each client's last step took

    def play_round(self, t: int, is_absent: IsAbsent | None = None) -> list[str]:
        """Plays round t and gives the clients that took part to its end.

        A client that misses an exchange is closed, keeps its weights, sits out the round and returns at the next.
        """
        turns = self._turns(t)
        try:
            return self._exchange(t, turns, self.server.round(t, list(self.clients)), is_absent)
        except Exception:  # none of these coroutines is ever resumed
            for turn in turns:
                self._sit_out(turn)
            raise

    def _turns(self, t: int) -> list[_Turn]:
        """One for each coroutine: names with the same logic are a stack."""
        stacks: dict[int, list[str]] = {}
        for n, logic in self.clients.items():
            stacks.setdefault(id(logic), []).append(n)
        return [_Turn(names, self.clients[names[0]], _begun(self.clients[names[0]], t)) for names in stacks.values()]

    def _exchange(self, t: int, turns: list[_Turn], server: ServerRound, is_absent: IsAbsent | None) -> list[str]:
        asks, _ = _send(server, None, t, 0)
        for exchange in itertools.count():
            if is_absent is not None:
                for turn in turns:
                    turn.missed = any(is_absent(n, exchange) for n in turn.client_ids)
                self._let_go(turns)
            for turn in turns:
                turn.logic.hear(turn.reply)
            self._advance_all(t, exchange, turns)
            self._let_go(turns)
            _refuse_out_of_step(turns, asks, t, exchange)
            if not asks:
                present = {n for turn in turns for n in turn.client_ids}
                return [n for n in self.clients if n in present]
            uploads = self._up(t, exchange, turns)
            self._observe(uploads)
            asks, replies = _send(server, uploads, t, exchange)
            self._down(t, exchange, turns, replies)
        raise AssertionError("unreachable")

    def _advance_all(self, t: int, exchange: int, turns: list[_Turn]) -> None:
        def advance(turn: _Turn) -> None:
            began = time.perf_counter()
            _advance(turn, t, exchange)
            self._seconds[turn.client_ids[0]] = time.perf_counter() - began

        self._workers.map(advance, turns, cost=lambda turn: self._seconds.get(turn.client_ids[0], 0.0))

    def _up(self, t: int, exchange: int, turns: list[_Turn]) -> dict[str, Message]:
        """What the server receives, in roster order, whoever is stacked."""
        passed: dict[str, Message] = {}
        try:
            batch = self.server.expected_batch(t, exchange)
            for turn in turns:
                about = turn.about()
                for n, upload in zip(turn.client_ids, turn.uploads(), strict=True):
                    passed[n] = self.wire.up(n, upload, about, batch)
        except Exception as error:
            raise _told(f"round {t}, exchange {exchange}", error) from error
        return {n: passed[n] for n in self.clients if n in passed}

    def _down(self, t: int, exchange: int, turns: list[_Turn], replies: Replies | None) -> None:
        try:
            for turn in turns:
                turn.receive([self.wire.down(n, _reply_to(n, replies)) for n in turn.client_ids])
        except Exception as error:
            raise _told(f"round {t}, exchange {exchange}", error) from error

    def _let_go(self, turns: list[_Turn]) -> None:
        """Closes those who miss this exchange and takes them out of the round; a stack goes as a whole."""
        for turn in [turn for turn in turns if turn.missed]:
            self._sit_out(turn)
            turns.remove(turn)

    @staticmethod
    def _sit_out(turn: _Turn) -> None:
        turn.round.close()
        turn.logic.learner.forget()


def _told(where: str, error: Exception) -> FedalError:
    """The error with its place in front: a mistake that explains itself keeps its kind, others become RunError."""
    if isinstance(error, FedalError):
        return type(error)(f"{where}: {error}")
    return RunError(f"{where}: {type(error).__name__}: {error}")


def _begun(logic: ClientLogic, t: int) -> ClientRound:
    try:
        begun = logic.round(t)
        if not isinstance(begun, Generator):
            raise TypeError(f"{type(logic).__name__}.round has no yield; one without exchanges ends in `yield from ()`")
        return begun
    except Exception as error:
        raise _told(f'client "{logic.client_id}", round {t}', error) from error


def _advance(turn: _Turn, t: int, exchange: int) -> None:
    """Runs a client to its next upload or to the end of its round. Any thread may do it."""
    try:
        turn.upload = next(turn.round) if exchange == 0 else turn.round.send(turn.reply)
    except StopIteration:
        turn.upload = None
    except MissedExchange:
        turn.missed = True
    except Exception as error:
        raise _told(f'client "{turn.logic.client_id}", round {t}, exchange {exchange}', error) from error


def _send(server: ServerRound, uploads: Uploads | None, t: int, exchange: int) -> tuple[bool, Replies | None]:
    """Whether the server wants further uploads, and its replies to the last ones."""
    try:
        replies: Any = next(server) if uploads is None else server.send(uploads)
        return True, replies
    except StopIteration as stop:
        return False, stop.value
    except Exception as error:
        raise _told(f"server, round {t}, exchange {exchange}", error) from error


def _reply_to(client_id: str, replies: Replies | None) -> Message:
    if not replies or client_id not in replies:
        raise OutOfStepError(f'the server has no reply for client "{client_id}".')
    return replies[client_id]


def _refuse_out_of_step(turns: list[_Turn], asks: bool, t: int, exchange: int) -> None:
    for turn in turns:
        n = turn.logic.client_id
        if asks and turn.upload is None:
            raise OutOfStepError(f'round {t}: client "{n}" ended after {exchange} exchanges, the server expects more.')
        if not asks and turn.upload is not None:
            raise OutOfStepError(f'round {t}: client "{n}" still sends after {exchange} exchanges, the server is done.')
