"""Clients that are in memory only while they take part in a round. At rest, the state of each is a file.

Waking is resuming: the client is built anew and loads its state, so its bits are those of a client that stayed.
One without a file has not taken part yet: it is what it is built as.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from fedal.engine.player import LocalPlayer, PlayerUploads
from fedal.lazy import Tensor
from fedal.learners.base import State
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


class RestingClients:
    """Wakes the clients of a run and puts them to rest."""

    def __init__(self, build: Build, files: RestFiles) -> None:
        self._build, self.files = build, files
        self._building = threading.Lock()  # weights are drawn from one global generator
        self._visitors: OrderedDict[str, LocalPlayer] = OrderedDict()  # read only: they equal their files
        self._visiting = threading.Lock()

    def wake(self, client: str) -> LocalPlayer:
        state = self.files.read(client)
        with self._building:
            player = LocalPlayer(self._build(client, state is None))
        if state is not None:
            player.load_states({client: state})
        return player

    def visit(self, client: str) -> LocalPlayer:
        """The client, to be looked at: a caller that changes it must wake it."""
        with self._visiting:
            if client in self._visitors:
                self._visitors.move_to_end(client)
                return self._visitors[client]
        player = self.wake(client)
        with self._visiting:
            self._visitors[client] = player
            if len(self._visitors) > VISITORS:
                self._visitors.popitem(last=False)
        return player

    def rest(self, client: str, state: State) -> None:
        """Keeps the state of a client."""
        self.files.write(client, state)
        self._dismiss(client)

    def restore(self, client: str, saved: State) -> None:
        """Goes on from what a checkpoint holds: a reference, a state, or nothing if it has not taken part yet."""
        if not saved:
            self.files.remove(client)
        elif "learner" in saved:  # of a run whose clients were in memory
            self.files.write(client, saved)
        else:
            self.files.adopt(client, saved)
        self._dismiss(client)

    def _dismiss(self, client: str) -> None:
        with self._visiting:
            self._visitors.pop(client, None)


class RestingPlayer:
    """A client that is woken when a round begins and rests from its end on."""

    def __init__(self, name: str, clients: RestingClients) -> None:
        self.names: tuple[str, ...] = (name,)
        self._name, self._clients = name, clients
        self.awake: LocalPlayer | None = None
        self._round: int | None = None  # a round that the client has not begun yet
        self._observed: Mapping[str, Any] = {}
        self.learner = RestingLearner(self, clients)

    def begin(self, t: int) -> None:
        self._round, self._observed = t, {}

    def give(self, replies: Mapping[str, Message]) -> None:
        assert self.awake is not None
        self.awake.give(replies)

    def take(self) -> PlayerUploads | None:
        if self._round is not None:  # here, on a worker's thread
            self.awake = self._clients.wake(self._name)
            self.awake.begin(self._round)
            self._round = None
        assert self.awake is not None
        uploaded = self.awake.take()
        if uploaded is None:
            self._observed = self.awake.observed()[self._name]
            self._rest()
        return uploaded

    def forget(self) -> None:
        self._round, self._observed = None, {}
        if self.awake is not None:
            self.awake.forget()
            self._rest()

    def _rest(self) -> None:
        assert self.awake is not None
        self._clients.rest(self._name, self.awake.states()[self._name]())
        self.awake = None

    def observed(self) -> Mapping[str, Mapping[str, Any]]:
        return {self._name: self._observed}

    def states(self) -> dict[str, Callable[[], State]]:
        return {self._name: lambda: self._clients.files.reference(self._name)}

    def load_states(self, states: Mapping[str, State]) -> None:
        self._clients.restore(self._name, states[self._name])


class RestingLearner:
    """The part of a learner used outside a round; within one, it is the learner of the client that is awake."""

    def __init__(self, player: RestingPlayer, clients: RestingClients) -> None:
        self._player, self._clients = player, clients

    def _learner(self) -> Any:
        player = self._player.awake or self._clients.visit(self._player.names[0])
        return player.logic.learner

    def predict(self, x: Tensor) -> Tensor:
        return cast("Tensor", self._learner().predict(x))

    def state_dict(self) -> State:
        return cast("State", self._learner().state_dict())
