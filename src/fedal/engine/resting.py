"""Clients that take part in a round only now and then. Between two of their rounds, each is no more than its state.

Waking is resuming: the client is built anew and loads its state, so its bits are those of a client that stayed.
One without a state has not taken part yet: it is what it is built as. Several clients of one architecture can be woken
as a stack, whose networks remain from round to round: then waking is a copy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from fedal.engine.player import LocalPlayer, PlayerUploads, StackPlayer
from fedal.errors import CheckpointError
from fedal.lazy import Tensor, torch
from fedal.learners.base import Frozen, Learner, Mode, State, copied
from fedal.messages import Message
from fedal.methods.client import ClientLogic

Build = Callable[[str, bool], ClientLogic]
"""Builds a client as it was before its first round; whether it is the first time, so that its model must be checked."""

VISITORS = 8  # clients that stay in memory between two calls from outside a round, such as those of one evaluation


class RestFiles(Protocol):
    """Where the states of clients at rest are."""

    def reference(self, client: str) -> State:
        """What a checkpoint holds in place of the state; empty for a client that has none yet."""

    def adopt(self, client: str, reference: State) -> None:
        """Goes on from a reference of a checkpoint."""

    def write(self, client: str, state: State) -> None: ...

    def read(self, client: str) -> State | None:
        """The state of a client; None if it has none yet. Its tensors may be memory-mapped."""

    def remove(self, client: str) -> None: ...


class RestInMemory:
    """The states themselves, for a run whose clients rest in memory."""

    def __init__(self) -> None:
        self._states: dict[str, State] = {}

    def reference(self, client: str) -> State:
        return self._states.get(client, {})

    def adopt(self, client: str, reference: State) -> None:
        raise CheckpointError(
            f'the state of client "{client}" is in a file at rest; the checkpoint belongs to a run with rest = disk.'
        )

    def write(self, client: str, state: State) -> None:
        self._states[client] = state

    def read(self, client: str) -> State | None:
        return self._states.get(client)

    def remove(self, client: str) -> None:
        self._states.pop(client, None)


class Stacks(Protocol):
    """The networks of stacks, which any clients of their architecture may use for a round."""

    def take(self, names: tuple[str, ...]) -> StackPlayer:
        """Free networks, made to be those of these clients, whose states they do not have yet."""

    def initial_state(self, client: str) -> State:
        """The state of a client that has not taken part yet."""

    def give_back(self, player: StackPlayer) -> None:
        """The round of these clients is over."""


class RestingClients:
    """Wakes the clients of a run and puts them to rest."""

    def __init__(self, build: Build, files: RestFiles, stacks: Stacks | None = None) -> None:
        self._build, self.files, self._stacks = build, files, stacks
        self._building = threading.Lock()  # weights are drawn from one global generator
        self._awake: dict[str, Learner] = {}  # of the clients in the current round
        self._visitors: OrderedDict[str, Learner] = OrderedDict()  # read only: they equal their files
        self._visiting = threading.Lock()

    def wake(self, names: tuple[str, ...]) -> LocalPlayer:
        """One client, or several as a stack, for a round."""
        player = self._one(names[0]) if len(names) == 1 else self._stack(names)
        self._awake.update(player.members)
        return player

    def rest(self, player: LocalPlayer) -> None:
        """Keeps the states of clients whose round is over."""
        for client, state in player.states().items():
            self.files.write(client, state())
        for client in player.names:
            self._dismiss(client)
        if isinstance(player, StackPlayer) and self._stacks is not None:
            self._stacks.give_back(player)

    def learner(self, client: str) -> Learner:
        """The client's model, to be looked at: that of the current round, or one that is built for the visit."""
        if client in self._awake:
            return self._awake[client]
        with self._visiting:
            if client in self._visitors:
                self._visitors.move_to_end(client)
                return self._visitors[client]
        (learner,) = self._one(client).members.values()
        with self._visiting:
            self._visitors[client] = learner
            if len(self._visitors) > VISITORS:
                self._visitors.popitem(last=False)
        return learner

    def restore(self, client: str, saved: State) -> None:
        """Goes on from what a checkpoint holds: a reference, a state, or nothing if it has not taken part yet."""
        if not saved:
            self.files.remove(client)
        elif "learner" in saved:  # of a run whose clients were in memory
            self.files.write(client, copied(saved, torch.device("cpu")))
        else:
            self.files.adopt(client, saved)
        self._dismiss(client)

    def _one(self, client: str) -> LocalPlayer:
        state = self.files.read(client)
        with self._building:
            player = LocalPlayer(self._build(client, state is None))
        if state is not None:
            player.load_states({client: state})
        return player

    def _stack(self, names: tuple[str, ...]) -> StackPlayer:
        assert self._stacks is not None
        found = {name: self.files.read(name) for name in names}
        with self._building:
            player = self._stacks.take(names)
            states = {name: state or self._stacks.initial_state(name) for name, state in found.items()}
        player.load_states(states)
        return player

    def _dismiss(self, client: str) -> None:
        self._awake.pop(client, None)
        with self._visiting:
            self._visitors.pop(client, None)


class RestingPlayer:
    """A client, or a stack of them, that is woken when a round begins and rests from its end on."""

    def __init__(self, names: tuple[str, ...], clients: RestingClients) -> None:
        self.names, self._clients = names, clients
        self._awake: LocalPlayer | None = None
        self._round: int | None = None  # a round that it has not begun yet
        self._observed: Mapping[str, Mapping[str, Any]] = {}

    def begin(self, t: int) -> None:
        self._round, self._observed = t, {}

    def give(self, replies: Mapping[str, Message]) -> None:
        assert self._awake is not None
        self._awake.give(replies)

    def take(self) -> PlayerUploads | None:
        if self._round is not None:  # here, on a worker's thread
            self._awake = self._clients.wake(self.names)
            self._awake.begin(self._round)
            self._round = None
        assert self._awake is not None
        uploaded = self._awake.take()
        if uploaded is None:
            self._observed = self._awake.observed()
            self._rest()
        return uploaded

    def forget(self) -> None:
        self._round, self._observed = None, {}
        if self._awake is not None:
            self._awake.forget()
            self._rest()

    def _rest(self) -> None:
        assert self._awake is not None
        self._clients.rest(self._awake)
        self._awake = None

    def observed(self) -> Mapping[str, Mapping[str, Any]]:
        return self._observed

    def states(self) -> dict[str, Callable[[], State]]:
        return {name: lambda name=name: self._clients.files.reference(name) for name in self.names}  # type: ignore[misc]

    def load_states(self, states: Mapping[str, State]) -> None:
        for name, saved in states.items():
            self._clients.restore(name, saved)


class RestingStack(RestingPlayer):
    """Clients that learn as one for a round."""

    def give_together(self, reply: Message) -> None:
        """Delivers the replies to all of them as one message with a leading client axis."""
        cast("StackPlayer", self._awake).give_together(reply)


class RestingLearner:
    """The part of a learner used outside a round; within one, it is the learner of the client that is awake."""

    def __init__(self, client: str, clients: RestingClients) -> None:
        self._client, self._clients = client, clients

    def predict(self, x: Tensor) -> Tensor:
        return self._clients.learner(self._client).predict(x)

    def frozen(self, mode: Mode = "train") -> Frozen:
        return self._clients.learner(self._client).frozen(mode)

    def state_dict(self) -> State:
        return self._clients.learner(self._client).state_dict()
