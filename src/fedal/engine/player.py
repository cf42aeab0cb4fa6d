"""A client as the round loop sees it, wherever it is: here, in a stack, in a Ray actor, at a site."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedal.errors import RunError
from fedal.learners.base import Learner, State
from fedal.messages import Message
from fedal.methods.client import ClientLogic, ClientRound


class MissedExchange(Exception):
    """Raised by the player of a client that is out of reach: it sits out the rest of the round."""


class Said(NamedTuple):
    """The uploads of a player's clients in one exchange, and the public batch that they are about."""

    uploads: Mapping[str, object]  # client -> what it yielded: the wire says whether that may pass
    batch: str | None = None


class Player(Protocol):
    """One client, or several that learn as one. The loop begins a round with all players, then takes and gives.

    All have been given their replies before the first is waited for, so that whoever is elsewhere works meanwhile.
    """

    names: tuple[str, ...]  # the clients that it plays for

    def begin(self, t: int) -> None:
        """Starts round t. Does not wait."""

    def give(self, replies: Mapping[str, Message]) -> None:
        """Hands over the replies to its clients. Does not wait."""

    def take(self) -> Said | None:
        """Waits for the next uploads; None at the end of the round. Any thread may call. Raises MissedExchange."""

    def forget(self) -> None:
        """Leaves the round: the coroutine is never resumed, pending passes are dropped, the weights stay."""

    def states(self) -> dict[str, Callable[[], State]]:
        """client -> what gives its state; nothing for a client that keeps its state itself."""

    def load_states(self, states: Mapping[str, State]) -> None:
        """Takes back what `states` gave, and keeps none of its tensors."""


PhaseDone = Callable[[str, str], None]
"""Told when a client has ended a phase of its round."""

MakeClients = Callable[[tuple[str, ...], PhaseDone], Mapping[str, ClientLogic]]
"""Names of clients -> their halves of the method. It must be possible to pickle it."""


class PlayerLost(RunError):
    """A process died, and what its clients had learned since the last checkpoint with it."""


class RemotePlayer(Player, Protocol):
    """A client in another process that is trusted: its learner can be asked from here."""

    learner: Any


class Elsewhere(Protocol):
    """Other processes for the clients of a simulation."""

    def place(self, names: tuple[str, ...], make: MakeClients, phase_done: PhaseDone) -> Sequence[RemotePlayer]:
        """New players for the clients, in place of those of before, of whom some may be lost."""


class LocalPlayer:
    """A client in this process."""

    def __init__(self, logic: ClientLogic) -> None:
        self.logic = logic
        self.names: tuple[str, ...] = (logic.client_id,)
        self._round: ClientRound | None = None
        self._reply: Message | None = None

    def begin(self, t: int) -> None:
        begun: Any = self.logic.round(t)
        if not isinstance(begun, Generator):
            kind = type(self.logic).__name__
            raise TypeError(f"{kind}.round has no yield; one without exchanges ends in `yield from ()`")
        self._round, self._reply = begun, None

    def give(self, replies: Mapping[str, Message]) -> None:
        (self._reply,) = replies.values()

    def take(self) -> Said | None:
        assert self._round is not None
        reply, self._reply = self._reply, None
        try:
            upload: Any = self._round.send(reply)
        except StopIteration:
            return None
        return Said(self._uploads(upload), self.logic.spoken_about(upload))

    def forget(self) -> None:
        if self._round is not None:
            self._round.close()
            self._round = None
        self.logic.learner.forget()

    def states(self) -> dict[str, Callable[[], State]]:
        return {self.logic.client_id: lambda: _state(self.logic.learner, self.logic)}

    def load_states(self, states: Mapping[str, State]) -> None:
        (state,) = states.values()
        self.logic.learner.load_state_dict(state["learner"])
        self.logic.load_state_dict(state["method"])

    def _uploads(self, upload: object) -> dict[str, object]:
        return {self.logic.client_id: upload}


class StackPlayer(LocalPlayer):
    """Clients that learn as one: their messages have a client axis in front, which nobody else sees."""

    def __init__(self, logic: ClientLogic, members: Mapping[str, Learner]) -> None:
        super().__init__(logic)
        self._members, self.names = dict(members), tuple(members)

    def give(self, replies: Mapping[str, Message]) -> None:
        self._reply = Message.join([replies[name] for name in self._members])

    def states(self) -> dict[str, Callable[[], State]]:
        return {name: lambda own=own: _state(own, self.logic) for name, own in self._members.items()}  # type: ignore[misc]

    def load_states(self, states: Mapping[str, State]) -> None:
        for name, own in self._members.items():
            own.load_state_dict(states[name]["learner"])
            self.logic.load_state_dict(states[name]["method"])

    def _uploads(self, upload: object) -> dict[str, object]:
        size = len(self._members)
        each: Sequence[object] = upload.split(size) if isinstance(upload, Message) else [upload] * size
        return dict(zip(self._members, each, strict=True))


def _state(learner: Learner, logic: ClientLogic) -> State:
    return {"learner": learner.state_dict(), "method": logic.state_dict()}
