"""Builds the federation of a run from its config and data: clients, server and wire, here or in Ray actors."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
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
from fedal.learners.base import Learner
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner
from fedal.methods.client import ClientLogic
from fedal.precision import dtype_of
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
from fedal.simulate.stacking import stacks
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

    def learner(self, client: str, model: str, custom: nn.Module | Learner | None = None) -> Learner:
        return build_learner(self._config, self._split.task, client, model, self.public, custom)

    def logic(self, client: str, learner: Learner, phase_done: PhaseDone) -> ClientLogic:
        done = partial(phase_done, client)
        return build_client(self._config, client, learner, self.private(client), self.public, done)


def assemble(
    config: Config,
    split: DataSplit,
    workers: Workers,
    *,
    custom_models: CustomModels | None = None,
    cluster: Cluster | None = None,
) -> Assembly:
    """Builds the federation, after checking all that can be checked before training.

    The checks cover feature widths, hidden randomness and what the learners support.
    """
    refuse_unfit_task(config, split.task)
    custom, method, watch = custom_models or {}, config.method_object(), Watch()
    staged = _Staged(config, split)
    models = {
        name: f"<{type(custom[name]).__name__}>" if name in custom else model_of(config, name, table.model, split.task)
        for table in config.client_tables
        for name in [str(table.name)]
    }
    # Other processes make their own learners: one of each kind is enough here to check what it supports.
    made_here = list(models) if cluster is None else list({model: name for name, model in models.items()}.values())
    learners = {name: staged.learner(name, models[name], custom.get(name)) for name in made_here}
    width = refuse_misfits(method, learners, models)
    phase_done: PhaseDone = lambda client, phase: watch.phase_done(client, phase)  # noqa: E731 - it may be replaced later
    players: list[Player]
    if cluster is None:
        players = _players(config, split, models, learners, staged, phase_done)
    else:
        make = partial(build_clients, config.to_toml(), split, models)
        remote = cluster.place(config.client_names, make, phase_done)
        learners = {player.names[0]: player.learner for player in remote}
        players = [*remote]
    server = build_server(config, split.task, staged.public, models, width)
    wire = Wire(method.up, method.down, axis_lengths(config, split.task, width), dtype_of(config.precision))
    federation = build_federation(config, players, server, wire, workers, watch)
    federation.forge = forger(config)
    return Assembly(federation, learners, models, FederationView(config, split, federation, learners, workers))


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
    for names in stacks(config, models):
        members = {name: single.pop(name) for name in names}
        together = StackedLearner(
            [cast(TorchLearner, member) for member in members.values()], len(split.dataset.sample_shape)
        )
        private = PrivateStack([staged.private(name) for name in names])

        def all_done(phase: str, names: tuple[str, ...] = names) -> None:
            for name in names:
                phase_done(name, phase)

        logic = build_client(config, ", ".join(names), together, private, staged.public, all_done)
        players.append(StackPlayer(logic, members))
    return players + [LocalPlayer(staged.logic(name, learner, phase_done)) for name, learner in single.items()]


def build_clients(
    config_toml: str, split: DataSplit, models: Mapping[str, str], names: tuple[str, ...], phase_done: PhaseDone
) -> dict[str, ClientLogic]:
    """The named clients, for a worker process that holds only these."""
    staged = _Staged(Config(**tomllib.loads(config_toml)), split)
    return {name: staged.logic(name, staged.learner(name, models[name]), phase_done) for name in names}
