"""The one round loop: joins the clients' coroutines and the server's over the wire."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from fedal.errors import FedalError, OutOfStepError, RunError
from fedal.messages import Message
from fedal.methods.base import ClientLogic, ClientRound, Replies, ServerLogic, ServerRound, Uploads
from fedal.wire import Wire

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Whatever applies a function to many clients at once and gives the results in order."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]: ...


@dataclass
class _Turn:
    """One client in one round: its coroutine, what goes in next, what came out (None: it ended)."""

    client_id: str
    logic: ClientLogic
    round: ClientRound
    reply: Message | None = None
    upload: Message | None = None


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

    def play_round(
        self, t: int, is_absent: Callable[[str, int], bool] = lambda client_id, exchange: False
    ) -> list[str]:
        """Plays round t and gives the clients that took part to its end.

        A client that misses an exchange is closed, keeps its weights, sits out the round and returns at the next.
        """
        turns = {n: _Turn(n, logic, logic.round(t)) for n, logic in self.clients.items()}
        server = self.server.round(t, list(turns))
        asks, _ = _send(server, None)
        for exchange in itertools.count():
            for n in [n for n in turns if is_absent(n, exchange)]:
                self._sit_out(turns.pop(n))
            try:
                self._workers.map(partial(_advance, t=t, exchange=exchange), turns.values())
            except BaseException:
                for turn in turns.values():
                    self._sit_out(turn)
                raise
            _refuse_out_of_step(turns, asks, t, exchange)
            if not asks:
                return list(turns)
            batch = self.server.expected_batch(t, exchange)
            uploads = {n: self._up(turn, t, exchange, batch) for n, turn in turns.items()}
            self._observe(uploads)
            asks, replies = _send(server, uploads)
            for n, turn in turns.items():
                if not replies or n not in replies:
                    raise OutOfStepError(f'round {t}, exchange {exchange}: the server has no reply for client "{n}".')
                turn.reply = self.wire.down(n, replies[n])
        raise AssertionError("unreachable")

    def _up(self, turn: _Turn, t: int, exchange: int, batch: str | None) -> Message:
        public = turn.logic._public
        try:
            return self.wire.up(turn.client_id, turn.upload, public.drawn if public else None, batch)
        except FedalError as error:
            raise type(error)(f"round {t}, exchange {exchange}: {error}") from None

    @staticmethod
    def _sit_out(turn: _Turn) -> None:
        turn.round.close()
        turn.logic.learner.forget()


def _advance(turn: _Turn, t: int, exchange: int) -> None:
    """Runs a client to its next upload or to the end of its round. Any thread may do it."""
    try:
        turn.upload = next(turn.round) if exchange == 0 else turn.round.send(turn.reply)
    except StopIteration:
        turn.upload = None
    except FedalError as error:
        raise type(error)(f'client "{turn.client_id}", round {t}, exchange {exchange}: {error}') from error
    except Exception as error:
        where = f'client "{turn.client_id}", round {t}, exchange {exchange}'
        raise RunError(f"{where}: {type(error).__name__}: {error}") from error


def _send(server: ServerRound, uploads: Uploads | None) -> tuple[bool, Replies | None]:
    """Whether the server wants further uploads, and its replies to the last ones."""
    try:
        replies: Any = next(server) if uploads is None else server.send(uploads)
        return True, replies
    except StopIteration as stop:
        return False, stop.value


def _refuse_out_of_step(turns: Mapping[str, _Turn], asks: bool, t: int, exchange: int) -> None:
    for n, turn in turns.items():
        if asks and turn.upload is None:
            raise OutOfStepError(f'round {t}: client "{n}" ended after {exchange} exchanges, the server expects more.')
        if not asks and turn.upload is not None:
            raise OutOfStepError(f'round {t}: client "{n}" still sends after {exchange} exchanges, the server is done.')
