"""A client as the round loop sees it, wherever it runs: in this process, in a stack, in a Ray actor or at a site."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedal.errors import RunError
from fedal.lazy import torch
from fedal.learners.base import Learner, State, end_stage
from fedal.messages import Message, Together
from fedal.methods.client import ClientLogic, ClientRound


class MissedExchange(Exception):
    """The client is unreachable and sits out the rest of the round. Raised by its player."""


class PlayerUploads(NamedTuple):
    """The uploads of a player's clients in one exchange, and the public batch that they are about."""

    uploads: Mapping[str, object]  # client -> what it yielded, together if it was a stack; the wire checks it
    batch: str | None = None


class Player(Protocol):
    """One client, or several that learn as one.

    The loop begins a round with all players, then takes uploads and gives replies.
    All players get their replies before the loop waits for the first upload, so remote clients work in parallel.
    """

    names: tuple[str, ...]  # the clients that it stands for

    def begin(self, t: int) -> None:
        """Starts round t. Does not wait."""

    def give(self, replies: Mapping[str, Message]) -> None:
        """Delivers the replies to its clients. Does not wait."""

    def take(self) -> PlayerUploads | None:
        """Waits for the next uploads; returns None at the end of the round. Thread-safe. Raises MissedExchange."""

    def forget(self) -> None:
        """Leaves the round: the coroutine is never resumed, pending passes are dropped, the weights stay."""

    def observed(self) -> Mapping[str, Mapping[str, Any]]:
        """client -> the numbers that its half of the method observed in the last round; no entry for a site."""

    def states(self) -> dict[str, Callable[[], State]]:
        """client -> a function that returns its state; no entry for a client that keeps its state itself."""

    def load_states(self, states: Mapping[str, State]) -> None:
        """Restores what `states` returned. Copies its tensors."""


PhaseDone = Callable[[str, str], None]
"""Called with client and phase when a client has finished a phase of its round."""

MakeClients = Callable[[tuple[str, ...], PhaseDone], Mapping[str, ClientLogic]]
"""Names of clients -> their halves of the method. Must be picklable."""


class PlayerLost(RunError):
    """A process died, and what its clients learned since the last checkpoint is lost."""


class RemotePlayer(Player, Protocol):
    """A client in another, trusted process, whose learner can be called from here."""

    learner: Any


class Cluster(Protocol):
    """Other processes that run the clients of a simulation."""

    def place(self, costs: Mapping[str, float], make: MakeClients, phase_done: PhaseDone) -> Sequence[RemotePlayer]:
        """New players for the clients. They replace earlier ones, some of which may be lost."""


class LocalPlayer:
    """A client in this process."""

    def __init__(self, logic: ClientLogic) -> None:
        self.logic = logic
        self.names: tuple[str, ...] = (logic.client_id,)
        self._round: ClientRound | None = None
        self._reply: Message | None = None

    @property
    def members(self) -> Mapping[str, Learner]:
        """client -> its own learner, also in a stack."""
        return {self.logic.client_id: self.logic.learner}

    def begin(self, t: int) -> None:
        self.logic.observed = {}
        begun: Any = self.logic.round(t)
        if not isinstance(begun, Generator):
            kind = type(self.logic).__name__
            raise TypeError(f"{kind}.round has no yield; end a round without exchanges with `yield from ()`")
        self._round, self._reply = begun, None

    def give(self, replies: Mapping[str, Message]) -> None:
        (self._reply,) = replies.values()

    def take(self) -> PlayerUploads | None:
        assert self._round is not None
        reply, self._reply = self._reply, None
        try:
            upload: Any = self._round.send(reply)
        except StopIteration:
            end_stage(self.logic.learner)  # of a stage that the method ran without its building blocks
            return None
        return self._packed(upload, self.logic.public_batch_of(upload))

    def forget(self) -> None:
        if self._round is not None:
            self._round.close()
            self._round = None
        self.logic.observed = {}
        self.logic.learner.forget()
        end_stage(self.logic.learner)  # as another learner, it keeps what it learned before the exchange failed

    def observed(self) -> Mapping[str, Mapping[str, Any]]:
        return {self.logic.client_id: self.logic.observed}

    def states(self) -> dict[str, Callable[[], State]]:
        return {self.logic.client_id: lambda: _state(self.logic.learner, self.logic.state_dict())}

    def load_states(self, states: Mapping[str, State]) -> None:
        (state,) = states.values()
        if not state:  # of a client that rested on disk and has not taken part yet: it is what it was built as
            return
        self.logic.learner.load_state_dict(state["learner"])
        self.logic.load_state_dict(state["method"])

    def _packed(self, upload: object, batch: str | None) -> PlayerUploads:
        return PlayerUploads({self.logic.client_id: upload}, batch)


class StackPlayer(LocalPlayer):
    """Clients that learn as one. Their messages have a leading client axis, which no other code sees."""

    def __init__(self, logic: ClientLogic, members: Mapping[str, Learner]) -> None:
        super().__init__(logic)
        self._members, self.names = dict(members), tuple(members)

    @property
    def members(self) -> Mapping[str, Learner]:
        return self._members

    def give(self, replies: Mapping[str, Message]) -> None:
        self.give_together(Message.join([replies[name] for name in self._members]))

    def give_together(self, reply: Message) -> None:
        """Delivers the replies to all members as one message with a leading client axis."""
        self._reply = reply

    def observed(self) -> Mapping[str, Mapping[str, Any]]:
        """Numbers with a leading client axis are split; any other number is that of every member."""
        size = len(self._members)
        split = {
            key: [*value] if isinstance(value, torch.Tensor) and value.shape[:1] == (size,) else [value] * size
            for key, value in self.logic.observed.items()
        }
        return {name: {key: each[i] for key, each in split.items()} for i, name in enumerate(self._members)}

    def states(self) -> dict[str, Callable[[], State]]:
        return {
            name: lambda own=own, index=index: _state(own, self._kept_by(index))  # type: ignore[misc]
            for index, (name, own) in enumerate(self._members.items())
        }

    def _kept_by(self, index: int) -> State:
        """What one member would keep alone."""
        state = self.logic.state_dict()
        return state | {name: state[name][index] for name in self._apart}

    @property
    def _apart(self) -> list[str]:
        return [name.strip("_") for name in self.logic.kept_apart]

    def load_states(self, states: Mapping[str, State]) -> None:
        for name, own in self._members.items():
            own.load_state_dict(states[name]["learner"])
        kept = [states[name]["method"] for name in self._members]
        together = {name: torch.stack([state[name] for state in kept]) for name in self._apart}
        self.logic.load_state_dict({**kept[0], **together})

    def _packed(self, upload: object, batch: str | None) -> PlayerUploads:
        if isinstance(upload, Message):
            return PlayerUploads(Together(self.names, upload), batch)
        return PlayerUploads(dict.fromkeys(self._members, upload), batch)


def _state(learner: Learner, kept: State) -> State:
    return {"learner": learner.state_dict(), "method": kept}
