"""Clients in Ray actors, on one machine or a cluster: the same coroutines, bit-identical results.

An actor holds a group of clients for the whole run and works on one of them at a time, on one thread. Actors are spread
over the nodes, clients over the actors by what a step costs, and each node gets the data once. This process keeps the
loop, the server and the record; each client has a player here that forwards the loop's calls. Ray pickles all data that
it transfers, so the cluster must be trusted. It is for simulation; deployment has its own engine.
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
LOOK_S = 5.0  # between two looks at a cluster in which actors wait for a place


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
    """A connection to Ray, and the actors of the current run. With `gpus`, they share the GPUs of the cluster."""

    def __init__(self, ray: Any, workers: int, *, gpus: bool = False) -> None:
        self._ray, self._gpus = ray, gpus
        self.workers = workers or self._has("CPU")
        self.groups: list[Any] = []

    def place(self, costs: Mapping[str, float], make: MakeClients, phase_done: PhaseDone) -> list[RayPlayer]:
        """New actors on all nodes that are alive, with clients of about equal cost each. They replace earlier ones.

        `make` holds the data: it is put into Ray's store, from which each node fetches it once.
        """
        shared, is_placed = self._ray.put(make), False
        while not is_placed:
            self.release()
            shares = shared_out(costs, min(self.workers, len(costs), self._has("CPU")))
            actor = self._ray.remote(**self._needs(len(shares)))(ClientGroup)
            self.groups = [actor.remote(shared, names) for names in shares]
            is_placed = self._have_started()
        group_of = {name: group for group, names in zip(self.groups, shares, strict=True) for name in names}
        return [RayPlayer(name, self._caller(group_of[name], name), phase_done) for name in costs]

    def _has(self, resource: str) -> int:
        return max(1, int(self._ray.cluster_resources().get(resource, 1)))

    def _needs(self, actors: int) -> dict[str, Any]:
        """What each actor asks Ray for. One that has died is not restarted: it would not have its clients' states."""
        needs = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return {**needs, "num_gpus": min(1.0, self._has("GPU") / actors)} if self._gpus else needs

    def _have_started(self) -> bool:
        """Waits until every actor has a place; False if nodes have left, so that there are fewer places than actors."""
        waiting = [group.__ray_ready__.remote() for group in self.groups]
        while waiting:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_S)
            if waiting and self._has("CPU") < len(self.groups):
                return False
        return True

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


def shared_out(costs: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
    """The clients in `count` groups of about equal cost: each, the dearest first, joins the cheapest group so far."""
    groups: list[list[str]] = [[] for _ in range(count)]
    sums = [0.0] * count
    for name in sorted(costs, key=lambda name: -costs[name]):
        place = sums.index(min(sums))
        groups[place].append(name)
        sums[place] += costs[name]
    return [tuple(group) for group in groups]


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
def ray_cluster(address: str | None, workers: int, *, gpus: bool = False) -> Iterator[RayCluster]:
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
    cluster = RayCluster(ray, workers, gpus=gpus)
    try:
        yield cluster
    finally:
        cluster.release()
        if starts:
            ray.shutdown()
