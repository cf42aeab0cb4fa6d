"""Builds the federation of a run from its config and data: clients, server and wire, here or in Ray actors."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.data.streams import PrivateData, PrivateStack, Samples
from fedal.engine.loop import Federation, Watch, Workers
from fedal.engine.player import Cluster, LocalPlayer, PhaseDone, Player, StackPlayer
from fedal.engine.resting import RestFiles, RestingClients, RestingPlayer
from fedal.learners.base import Learner
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner
from fedal.methods.client import ClientLogic
from fedal.precision import dtype_of
from fedal.sample_layout import BY_COLUMN, BY_SAMPLE, SampleLayout
from fedal.simulate.attackers import forger
from fedal.simulate.build import (
    axis_lengths,
    build_client,
    build_federation,
    build_learner,
    build_server,
    model_of,
    private_data,
)
from fedal.simulate.checks import refuse_misfits, refuse_unfit_task
from fedal.simulate.stacking import resolve_stacked, stacks
from fedal.theory.view import FederationView
from fedal.wire import Wire

CustomModels = Mapping[str, nn.Module | Learner]
"""client -> a module to train, or a learner of any framework."""


@dataclass(frozen=True)
class Assembly:
    """A federation ready to run, and what the record needs about it."""

    federation: Federation
    learners: dict[str, Learner]
    model_names: dict[str, str]
    view: FederationView


class _Staged:
    """The inputs and labels of a split, staged on the run's device, and the clients built on them."""

    def __init__(self, config: Config, split: DataSplit) -> None:
        self._config, self._split = config, split
        dtype, device, data = dtype_of(config.precision), config.device, split.dataset
        self.train, self.public = (Samples(x, dtype, device) for x in (data.train_x, split.public_x))
        self.labels = torch.as_tensor(data.train_y, device=device)

    def private(self, client: str) -> PrivateData:
        data, indices = self._split.dataset, self._split.clients[client]
        return private_data(self._config, client, self.train, self.labels, indices, data.n_classes)

    def learner(
        self, client: str, model: str, custom: nn.Module | Learner | None = None, *, is_known: bool = False
    ) -> Learner:
        public, task = self.public_for(client), self._split.task
        return build_learner(self._config, task, client, model, public, custom, is_known=is_known)

    def logic(self, client: str, learner: Learner, phase_done: PhaseDone) -> ClientLogic:
        done = partial(phase_done, client)
        return build_client(self._config, client, learner, self.private(client), self.public_for(client), done)

    def public_for(self, client: str) -> Samples:
        """The public samples as the client sees them."""
        return self.public.with_imputed(self._split.imputed(client))


def assemble(
    config: Config,
    split: DataSplit,
    workers: Workers,
    *,
    custom_models: CustomModels | None = None,
    cluster: Cluster | None = None,
    rest: RestFiles | None = None,
) -> Assembly:
    """Builds the federation, after checking all that can be checked before training.

    The checks cover feature widths, hidden randomness and what the learners support. With `rest`, clients are in memory
    only while they take part in a round.
    """
    refuse_unfit_task(config, split.task)
    custom, method, watch = custom_models or {}, config.method_object(), Watch()
    staged = _Staged(config, split)
    models = {
        name: f"<{type(custom[name]).__name__}>" if name in custom else model_of(config, name, table.model, split.task)
        for table in config.client_tables
        for name in [str(table.name)]
    }
    # Learners that are made later: one of each kind is enough here to check what it supports.
    made_later = cluster is not None or rest is not None
    made_here = list({model: name for name, model in models.items()}.values()) if made_later else list(models)
    learners = {name: staged.learner(name, models[name], custom.get(name)) for name in made_here}
    width = refuse_misfits(method, learners, models)
    phase_done: PhaseDone = lambda client, phase: watch.phase_done(client, phase)  # noqa: E731 - it may be replaced later
    players: list[Player]
    if rest is not None:

        def built(name: str, first: bool) -> ClientLogic:
            learner = staged.learner(name, models[name], custom.get(name), is_known=not first)
            return staged.logic(name, learner, phase_done)

        at_rest = RestingClients(built, rest)
        resting = [RestingPlayer(name, at_rest) for name in config.client_names]
        learners = {player.names[0]: cast(Learner, player.learner) for player in resting}
        players = [*resting]
    elif cluster is None:
        players = _players(config, split, models, learners, staged, phase_done)
    else:
        make = partial(build_clients, config.to_toml(), split, models)
        seconds = {models[name]: _pass_seconds(learner, staged.public) for name, learner in learners.items()}
        remote = cluster.place({name: seconds[models[name]] for name in config.client_names}, make, phase_done)
        learners = {player.names[0]: player.learner for player in remote}
        players = [*remote]
    server = build_server(config, split.task, staged.public, models, width, workers, _layout_of(players))
    wire = Wire(method.up, method.down, axis_lengths(config, split.task, width), dtype_of(config.precision))
    federation = build_federation(config, players, server, wire, workers, watch)
    federation.forge = forger(config)
    return Assembly(federation, learners, models, FederationView(config, split, federation, learners, workers))


def _pass_seconds(learner: Learner, public: Samples) -> float:
    """The time of a forward pass: what a client costs relative to others, to place it. No bit depends on it."""
    x, times = public.take(torch.arange(min(32, len(public)))), []
    for _ in range(3):
        began = time.perf_counter()
        learner.predict(x)
        times.append(time.perf_counter() - began)
    return min(times)


def _players(
    config: Config,
    split: DataSplit,
    models: Mapping[str, str],
    learners: Mapping[str, Learner],
    staged: _Staged,
    phase_done: PhaseDone,
) -> list[Player]:
    """One player per stack of clients, and one for each remaining client."""
    players: list[Player] = []
    single = dict(learners)
    as_single = resolve_stacked(config, models) == "auto"
    alike = {name: own for name, own in learners.items() if split.imputed(name) is None}  # a stack has one input
    for names in stacks(config, models, alike, split.dataset.sample_shape):
        members = {name: single.pop(name) for name in names}
        own = [cast(TorchLearner, member) for member in members.values()]
        together = StackedLearner(own, len(split.dataset.sample_shape), as_single=as_single)
        private = PrivateStack([staged.private(name) for name in names])

        def all_done(phase: str, names: tuple[str, ...] = names) -> None:
            for name in names:
                phase_done(name, phase)

        logic = build_client(config, ", ".join(names), together, private, staged.public, all_done)
        players.append(StackPlayer(logic, members))
    return players + [LocalPlayer(staged.logic(name, learner, phase_done)) for name, learner in single.items()]


def _layout_of(players: Sequence[Player]) -> SampleLayout:
    """The layout in which the server computes: by column, if that is how every client's logits are held already."""
    stacks = [cast(StackedLearner, each.logic.learner) for each in players if isinstance(each, StackPlayer)]
    by_column = len(stacks) == len(players) and all(stack.is_class_major for stack in stacks)
    return BY_COLUMN if by_column else BY_SAMPLE


def build_clients(
    config_toml: str, split: DataSplit, models: Mapping[str, str], names: tuple[str, ...], phase_done: PhaseDone
) -> dict[str, ClientLogic]:
    """The named clients, for a worker process that holds only these."""
    staged = _Staged(Config(**tomllib.loads(config_toml)), split)
    return {name: staged.logic(name, staged.learner(name, models[name]), phase_done) for name in names}
