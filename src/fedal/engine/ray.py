"""Clients in Ray actors, on one machine or a cluster: the same coroutines, bit-identical results.

An actor holds a group of clients for the whole run and works on one of them at a time, on one thread. This process
keeps the loop, the server and the record; each client has a player here that forwards the loop's calls. Ray pickles
all data that it transfers, so the cluster must be trusted. It is for simulation; deployment has its own engine.
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

from fedal.engine.player import LocalPlayer, MakeClients, PhaseDone, PlayerLost, PlayerUploads
from fedal.errors import ConfigError, RunError
from fedal.learners.base import Frozen, State
from fedal.machine import available_cores
from fedal.messages import Message
from fedal.user_code import keep_traceback

CONNECT_S = 10.0


@dataclass(frozen=True)
class Step:
    """One step of a client: its uploads (None at the end of its round), the phases that it finished and, at the end
    of its round, the numbers that it observed."""

    uploaded: PlayerUploads | None
    phases: tuple[str, ...]
    observed: Mapping[str, Any]


class ClientGroup:
    """The clients that one actor owns."""

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
        try:
            uploaded = self._players[client].take()
            observed = self._players[client].observed()[client] if uploaded is None else {}
            return Step(uploaded, tuple(self._finished), observed)
        except Exception as error:
            keep_traceback(error)
            raise

    def forget(self, client: str) -> None:
        self._players[client].forget()

    def predict(self, client: str, x: Tensor, phase: str | None) -> Tensor:
        learner = self._players[client].logic.learner
        return learner.predict(x) if phase is None else self._past[client, phase](x)

    def state(self, client: str) -> State:
        return self._players[client].states()[client]()

    def load_state(self, client: str, state: State) -> None:
        self._players[client].load_states({client: state})


Call = Callable[..., Callable[[], Any]]
"""(method, arguments) -> a function that waits for the result from the client's actor."""


class RayPlayer:
    """A client in an actor."""

    def __init__(self, name: str, call: Call, phase_done: PhaseDone) -> None:
        self.names: tuple[str, ...] = (name,)
        self._name, self._call, self._phase_done = name, call, phase_done
        self.learner = RayLearner(call)
        self._answer: Callable[[], Step] | None = None
        self._observed: Mapping[str, Any] = {}

    def begin(self, t: int) -> None:
        self._observed = {}
        self._answer = self._call("begin", t)

    def give(self, replies: Mapping[str, Message]) -> None:
        self._answer = self._call("give", replies)

    def take(self) -> PlayerUploads | None:
        assert self._answer is not None
        step = self._answer()
        for phase in step.phases:
            with self.learner.as_of(phase):
                self._phase_done(self._name, phase)
        self._observed = step.observed
        return step.uploaded

    def observed(self) -> Mapping[str, Mapping[str, Any]]:
        return {self._name: self._observed}

    def forget(self) -> None:
        self._observed = {}
        with suppress(PlayerLost):  # a lost client has nothing to forget
            self._call("forget")()

    def states(self) -> dict[str, Callable[[], State]]:
        return {self._name: lambda: self._call("state")()}

    def load_states(self, states: Mapping[str, State]) -> None:
        self._call("load_state", states[self._name])()


class RayLearner:
    """The part of a learner used outside a round. While a phase is reported, it uses the model of that phase."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._phase: str | None = None

    @contextmanager
    def as_of(self, phase: str) -> Iterator[None]:
        self._phase = phase
        try:
            yield
        finally:
            self._phase = None

    def predict(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._call("predict", x, self._phase)())

    def state_dict(self) -> State:
        return cast(State, self._call("state")()["learner"])


class RayCluster:
    """A connection to Ray, and the actors of the current run."""

    def __init__(self, ray: Any, workers: int) -> None:
        self._ray = ray
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.groups: list[Any] = []

    def place(self, names: tuple[str, ...], make: MakeClients, phase_done: PhaseDone) -> list[RayPlayer]:
        """New actors, with the clients distributed round-robin. They replace earlier actors."""
        self.release()
        count = min(self.workers, len(names))
        actor, shared = self._ray.remote(num_cpus=1, max_restarts=0)(ClientGroup), self._ray.put(make)
        self.groups = [actor.remote(shared, names[number::count]) for number in range(count)]
        return [
            RayPlayer(name, self._caller(self.groups[index % count], name), phase_done)
            for index, name in enumerate(names)
        ]

    def release(self) -> None:
        for group in self.groups:
            self._ray.kill(group)
        self.groups = []

    def _caller(self, group: Any, client: str) -> Call:
        from ray.exceptions import RayActorError, RayTaskError

        def call(method: str, *arguments: Any) -> Callable[[], Any]:
            pending = getattr(group, method).remote(client, *arguments)
            return lambda: result(pending)

        def result(pending: Any) -> Any:
            try:
                return self._ray.get(pending)
            except RayTaskError as error:
                raise error.cause from None  # as if it had been raised here
            except RayActorError as error:
                if error.actor_init_failed:
                    raise RunError(f'the actor could not create client "{client}": {_last_line(error)}') from None
                raise PlayerLost(f'the actor of client "{client}" died ({str(error).splitlines()[0]})') from None

        return call


def _refuse_unreachable(address: str | None) -> None:
    """Raises ConfigError if nothing listens at the address: Ray itself would wait for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"ray_address = {address}: no answer ({error}). Check that the cluster is up.") from None


def _last_line(error: Exception) -> str:
    """The exception at the end of a remote traceback."""
    return str(error).strip().splitlines()[-1].strip()


@contextmanager
def ray_cluster(address: str | None, workers: int) -> Iterator[RayCluster]:
    """Connects to Ray at `address`; without one, starts a local Ray that listens on loopback only.

    A Ray that this process has already started is used unchanged.
    """
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's setting for loopback addresses only
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
