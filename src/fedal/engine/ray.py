"""Clients in Ray actors, on one machine or a cluster: the same coroutines elsewhere, the same bits.

An actor holds a group of clients for the whole run and works for one of them at a time, on one thread. This process
keeps the loop, the server and the record; a player for each client passes on what the loop asks. Ray pickles what
crosses, so the cluster must be trusted: it is for simulation, deployment has an engine of its own.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fedal.engine.player import LocalPlayer, MakeClients, PhaseDone, PlayerLost, Said
from fedal.errors import ConfigError, RunError
from fedal.learners.base import Frozen, State
from fedal.machine import available_cores
from fedal.messages import Message

CONNECT_S = 10.0


@dataclass(frozen=True)
class Step:
    """How far a client came: what it said (None at the end of its round) and the phases that it finished on the way."""

    said: Said | None
    phases: tuple[str, ...]


class ClientGroup:
    """Lives in an actor and owns its clients."""

    def __init__(self, make: MakeClients, names: tuple[str, ...]) -> None:
        torch.set_num_threads(1)  # before the first operator, as the threads engine does
        self._finished: list[str] = []
        self._past: dict[tuple[str, str], Frozen] = {}  # (client, phase) -> its model at the end of that phase
        self._players = {name: LocalPlayer(logic) for name, logic in make(names, self._phase_done).items()}

    def _phase_done(self, client: str, phase: str) -> None:
        self._past[client, phase] = self._players[client].logic.learner.frozen("eval")
        self._finished.append(phase)

    def begin(self, client: str, t: int) -> Step:
        self._players[client].begin(t)
        return self._step(client)

    def give(self, client: str, replies: Mapping[str, Message]) -> Step:
        self._players[client].give(replies)
        return self._step(client)

    def _step(self, client: str) -> Step:
        self._finished.clear()
        return Step(self._players[client].take(), tuple(self._finished))

    def forget(self, client: str) -> None:
        self._players[client].forget()

    def predict(self, client: str, x: Tensor, phase: str | None) -> Tensor:
        learner = self._players[client].logic.learner
        return learner.predict(x) if phase is None else self._past[client, phase](x)

    def state(self, client: str) -> State:
        return self._players[client].states()[client]()

    def load_state(self, client: str, state: State) -> None:
        self._players[client].load_states({client: state})


Ask = Callable[..., Callable[[], Any]]
"""(verb, arguments) -> what waits for the answer of the client's actor."""


class RayPlayer:
    """A client in an actor."""

    def __init__(self, name: str, ask: Ask, phase_done: PhaseDone) -> None:
        self.names: tuple[str, ...] = (name,)
        self._name, self._ask, self._phase_done = name, ask, phase_done
        self.learner = RayLearner(ask)
        self._answer: Callable[[], Step] | None = None

    def begin(self, t: int) -> None:
        self._answer = self._ask("begin", t)

    def give(self, replies: Mapping[str, Message]) -> None:
        self._answer = self._ask("give", replies)

    def take(self) -> Said | None:
        assert self._answer is not None
        step = self._answer()
        for phase in step.phases:
            with self.learner.as_of(phase):
                self._phase_done(self._name, phase)
        return step.said

    def forget(self) -> None:
        with suppress(PlayerLost):  # whoever is gone has nothing to forget
            self._ask("forget")()

    def states(self) -> dict[str, Callable[[], State]]:
        return {self._name: lambda: self._ask("state")()}

    def load_states(self, states: Mapping[str, State]) -> None:
        self._ask("load_state", states[self._name])()


class RayLearner:
    """What is asked of a learner from outside of a round. While a phase is reported it is the model of that moment."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._phase: str | None = None

    @contextmanager
    def as_of(self, phase: str) -> Iterator[None]:
        self._phase = phase
        try:
            yield
        finally:
            self._phase = None

    def predict(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._ask("predict", x, self._phase)())

    def state_dict(self) -> State:
        return cast(State, self._ask("state")()["learner"])


class RayCluster:
    """A connection to Ray, and the actors of the present run."""

    def __init__(self, ray: Any, workers: int) -> None:
        self._ray = ray
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.groups: list[Any] = []

    def place(self, names: tuple[str, ...], make: MakeClients, phase_done: PhaseDone) -> list[RayPlayer]:
        """New actors for the clients, dealt out in turn, in place of those of before."""
        self.release()
        count = min(self.workers, len(names))
        actor, shared = self._ray.remote(num_cpus=1, max_restarts=0)(ClientGroup), self._ray.put(make)
        self.groups = [actor.remote(shared, names[number::count]) for number in range(count)]
        return [
            RayPlayer(name, self._asks(self.groups[index % count], name), phase_done)
            for index, name in enumerate(names)
        ]

    def release(self) -> None:
        for group in self.groups:
            self._ray.kill(group)
        self.groups = []

    def _asks(self, group: Any, client: str) -> Ask:
        from ray.exceptions import RayActorError, RayTaskError

        def ask(verb: str, *arguments: Any) -> Callable[[], Any]:
            asked = getattr(group, verb).remote(client, *arguments)
            return lambda: answer(asked)

        def answer(asked: Any) -> Any:
            try:
                return self._ray.get(asked)
            except RayTaskError as error:
                raise error.cause from None  # as if it had happened here
            except RayActorError as error:
                if error.actor_init_failed:
                    raise RunError(f'client "{client}" could not be made in its actor: {_last_line(error)}') from None
                raise PlayerLost(f'the actor of client "{client}" died ({str(error).splitlines()[0]})') from None

        return ask


def _refuse_unreachable(address: str | None) -> None:
    """Ray itself would wait for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"ray_address = {address}: nobody answers there ({error}). Is the cluster up?") from None


def _last_line(error: Exception) -> str:
    """Of a remote traceback: what was raised."""
    return str(error).strip().splitlines()[-1].strip()


@contextmanager
def ray_cluster(address: str | None, workers: int) -> Iterator[RayCluster]:
    """Ray at `address`; without one, a Ray of its own on this machine that listens on loopback only.

    A Ray that this process has already started is used as it is.
    """
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's word for: loopback addresses only
    try:
        import ray
    except ImportError:
        raise ConfigError("engine = ray needs the package ray. Type: pip install 'fedal[ray]'") from None
    starts = not ray.is_initialized()
    if starts:
        _refuse_unreachable(address)
        local: dict[str, Any] = dict(num_cpus=workers or available_cores(), include_dashboard=False)
        try:
            ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else local))
        except (ConnectionError, RuntimeError, ValueError) as error:
            hint = " If the cluster asks for a token, set RAY_AUTH_TOKEN." if address else ""
            raise ConfigError(f"no Ray at {address or 'this machine'}: {str(error).splitlines()[0]}.{hint}") from None
    cluster = RayCluster(ray, workers)
    try:
        yield cluster
    finally:
        cluster.release()
        if starts:
            ray.shutdown()
