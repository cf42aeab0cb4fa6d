"""The only round loop: connects the players and the server's coroutine over the wire."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from fedal.engine.player import LocalPlayer, MissedExchange, Player, PlayerUploads, StackPlayer
from fedal.engine.resting import RestingPlayer, RestingStack
from fedal.errors import FedalError, OutOfStepError, RunError
from fedal.messages import Message, Together
from fedal.methods.server import Replies, ServerLogic, ServerRound, Uploads
from fedal.user_code import one_line
from fedal.wire import Wire

IsAbsent = Callable[[str, int], bool]
"""Whether a client misses an exchange of a round. One that misses exchange 0 does not begin the round."""

Forge = Callable[[int, int, Mapping[str, object]], Mapping[str, object]]
"""Round, exchange and what the clients send -> what they send after all: attackers of a simulation lie."""

Form = Callable[[Sequence[Player]], list[Player]]
"""The players of the clients in a round -> those that run it: some stand for several clients, as a stack."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Applies a function to many clients at once and returns the results in order.

    `cost` estimates how long an item takes; an implementation may use it for scheduling.
    """

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], cost: Callable[[Item], float] | None = None
    ) -> list[Result]: ...


@dataclass
class Watch:
    """Callbacks that observe the rounds, for the record. They may be replaced between rounds."""

    phase_done: Callable[[str, str], None] = lambda client, phase: None  # called in the client's thread
    exchanged: Callable[[Uploads], None] = lambda uploads: None  # called with the uploads, before the server gets them
    expects: Callable[[bool], None] = lambda uploads: None  # whether each client's next answer must be an upload


@dataclass(slots=True)
class _Turn:
    """One player in one round. It has finished the round when `uploaded` is None."""

    player: Player
    uploaded: PlayerUploads | None = None
    missed: bool = False

    @property
    def name(self) -> str:
        return ", ".join(self.player.names)


class Federation:
    """Players, server and wire of one run. The `roster` fixes the order of clients, whatever their players."""

    def __init__(
        self,
        roster: Sequence[str],
        players: Iterable[Player],
        server: ServerLogic,
        wire: Wire,
        workers: Workers,
        watch: Watch | None = None,
    ) -> None:
        self.roster = list(roster)
        place = {name: index for index, name in enumerate(self.roster)}
        self.players = sorted(players, key=lambda player: place[player.names[0]])
        self.server, self.wire, self.watch = server, wire, watch or Watch()
        self.forge: Forge | None = None  # set by a simulation with attackers
        self.form: Form | None = None  # set by a simulation that stacks cohorts
        self._workers = workers
        self._begun: list[Player] = []  # the players of the last round
        self._seconds: dict[str, float] = {}  # duration of each player's last step

    def run_round(self, t: int, is_absent: IsAbsent | None = None) -> list[str]:
        """Runs round t and returns the clients that completed it.

        A client that misses an exchange keeps its weights, sits out the rest of the round and returns in the next.
        """
        present = [player for player in self.players if is_absent is None or not _misses(player, 0, is_absent)]
        self._begun = present if self.form is None else self.form(present)
        turns = [_Turn(player) for player in self._begun]
        names = {n for player in self._begun for n in player.names}
        cohort = [n for n in self.roster if n in names]
        self.server.observed = {}
        try:
            return self._exchange(t, cohort, turns, self.server.round(t, cohort), is_absent)
        except Exception:  # none of these coroutines is ever resumed
            for turn in turns:
                turn.player.forget()
            raise

    def observed(self) -> dict[str, Mapping[str, Any]]:
        """client -> the numbers that its half of the method observed in the last round, in roster order."""
        found = {name: numbers for player in self._begun for name, numbers in player.observed().items() if numbers}
        return {name: found[name] for name in self.roster if name in found}

    def state_dict(self) -> dict[str, Any]:
        """The state to checkpoint. Each client's part is a function, called once when it is saved, so that the
        states of many clients are never in memory together."""
        states = {name: state for player in self.players for name, state in player.states().items()}
        return {"wire": self.wire.state_dict(), "server": self.server.state_dict(), "clients": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state. Copies its tensors, which may be memory-mapped from a file."""
        self.wire.load_state_dict(state["wire"])
        self.server.load_state_dict(state["server"])
        for player in self.players:
            player.load_states({name: state["clients"][name] for name in player.states()})

    def _exchange(
        self, t: int, cohort: list[str], turns: list[_Turn], server: ServerRound, is_absent: IsAbsent | None
    ) -> list[str]:
        expects_uploads, _ = _send(server, None, t, 0)
        self.watch.expects(expects_uploads)
        for exchange in itertools.count():
            if exchange == 0:
                self._begin(t, turns)
            elif is_absent is not None:
                for turn in turns:
                    turn.missed = _misses(turn.player, exchange, is_absent)
                _drop_absent(turns)
            self._take_all(t, exchange, turns)
            _drop_absent(turns)
            _refuse_out_of_step(turns, expects_uploads, t, exchange)
            if not expects_uploads:
                present = {n for turn in turns for n in turn.player.names}
                return [n for n in cohort if n in present]
            uploads = self._up(t, exchange, cohort, turns)
            self.watch.exchanged(uploads)
            expects_uploads, replies = _send(server, uploads, t, exchange)
            self.watch.expects(expects_uploads)
            self._down(t, exchange, turns, replies)
        raise AssertionError("unreachable")

    def _begin(self, t: int, turns: list[_Turn]) -> None:
        for turn in turns:
            try:
                turn.player.begin(t)
            except Exception as error:
                raise _with_location(f'client "{turn.name}", round {t}', error) from error

    def _take_all(self, t: int, exchange: int, turns: list[_Turn]) -> None:
        def take(turn: _Turn) -> None:
            is_here = isinstance(turn.player, LocalPlayer | RestingPlayer)
            clock = time.thread_time if is_here else time.perf_counter
            began = clock()
            try:
                turn.uploaded = turn.player.take()
            except MissedExchange:
                turn.missed = True
            except Exception as error:
                raise _with_location(f'client "{turn.name}", round {t}, exchange {exchange}', error) from error
            self._seconds[turn.player.names[0]] = clock() - began

        self._workers.map(take, turns, cost=lambda turn: self._seconds.get(turn.player.names[0], 0.0))

    def _up(self, t: int, exchange: int, cohort: list[str], turns: list[_Turn]) -> Mapping[str, Message]:
        """What the server receives, in roster order, whichever clients are stacked."""
        received: list[Mapping[str, Message]] = []
        try:
            batch = self.server.expected_batch(t, exchange)
            if self.forge is not None:
                return self._up_forged(self.forge, t, exchange, cohort, turns, batch)
            for turn in turns:
                if (own := turn.uploaded) is None:
                    continue
                if isinstance(own.uploads, Together):
                    received.append(self.wire.up_together(own.uploads, own.batch, batch))
                else:
                    checked = {n: self.wire.up(n, upload, own.batch, batch) for n, upload in own.uploads.items()}
                    received.append(checked)
        except Exception as error:
            raise _with_location(f"round {t}, exchange {exchange}", error) from error
        if len(received) == 1 and [*received[0]] == cohort:  # perhaps a single stack: its messages stay together
            return received[0]
        each = {n: message for uploads in received for n, message in uploads.items()}
        return {n: each[n] for n in cohort if n in each}

    def _up_forged(
        self, forge: Forge, t: int, exchange: int, cohort: list[str], turns: list[_Turn], batch: str | None
    ) -> dict[str, Message]:
        """What the server receives if attackers lie."""
        uploaded = {n: turn.uploaded for turn in turns if turn.uploaded is not None for n in turn.player.names}
        each = {n: upload for turn in turns if turn.uploaded is not None for n, upload in turn.uploaded.uploads.items()}
        sent = forge(t, exchange, {n: each[n] for n in cohort if n in each})
        return {n: self.wire.up(n, upload, uploaded[n].batch, batch) for n, upload in sent.items()}

    def _down(self, t: int, exchange: int, turns: list[_Turn], replies: Replies | None) -> None:
        """Delivers the replies to the players: to all, or to none if one reply is invalid."""
        try:
            passed = [self._passed(turn.player, replies) for turn in turns]
            for give in passed:
                give()
        except Exception as error:
            raise _with_location(f"round {t}, exchange {exchange}", error) from error

    def _passed(self, player: Player, replies: Replies | None) -> Callable[[], None]:
        """Checks and copies the replies to a player's clients; returns a function that delivers them."""
        are_all = isinstance(replies, Together) and replies.names == player.names
        own = replies if are_all and replies else {n: _reply_to(n, replies) for n in player.names}
        if isinstance(player, StackPlayer | RestingStack):
            return partial(player.give_together, self.wire.down_together(own))
        return partial(player.give, {n: self.wire.down(n, reply) for n, reply in own.items()})


def _misses(player: Player, exchange: int, is_absent: IsAbsent) -> bool:
    """Whether a player misses an exchange; a stack leaves as a whole."""
    return any(is_absent(n, exchange) for n in player.names)


def _drop_absent(turns: list[_Turn]) -> None:
    """Removes the players that miss this exchange from the round."""
    for turn in turns:
        if turn.missed:
            turn.player.forget()
    turns[:] = [turn for turn in turns if not turn.missed]


def _with_location(where: str, error: Exception) -> FedalError:
    """The error prefixed with its location. A FedalError keeps its type; any other becomes a RunError, which also
    names the line of the user's code."""
    if isinstance(error, FedalError):
        return type(error)(f"{where}: {error}")
    return RunError(f"{where}: {one_line(error)}.")


def _send(server: ServerRound, uploads: Uploads | None, t: int, exchange: int) -> tuple[bool, Replies | None]:
    """Whether the server expects further uploads, and its replies to the last ones."""
    try:
        replies: Any = next(server) if uploads is None else server.send(uploads)
        return True, replies
    except StopIteration as stop:
        return False, stop.value
    except Exception as error:
        raise _with_location(f"server, round {t}, exchange {exchange}", error) from error


def _reply_to(client_id: str, replies: Replies | None) -> Message:
    if not replies or client_id not in replies:
        raise OutOfStepError(f'the server has no reply for client "{client_id}".')
    return replies[client_id]


def _refuse_out_of_step(turns: list[_Turn], expects_uploads: bool, t: int, exchange: int) -> None:
    for turn in turns:
        if expects_uploads != (turn.uploaded is not None):
            does, why = ("ended", "expects more") if expects_uploads else ("still sends", "is done")
            what = f"{does} after {exchange} exchanges; the server {why}."
            raise OutOfStepError(f'round {t}: client "{turn.name}" {what}')
