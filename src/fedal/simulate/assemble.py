"""Builds the federation of a run from its config and data: clients, server and wire, here or in Ray actors."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.data.streams import Samples
from fedal.engine.loop import Federation, Form, Watch, Workers
from fedal.engine.player import Cluster, LocalPlayer, PhaseDone, Player, StackPlayer
from fedal.engine.resting import RestFiles, RestingClients, RestingLearner, RestingPlayer, RestInMemory
from fedal.learners.base import Learner
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner
from fedal.methods.client import ClientLogic
from fedal.precision import dtype_of
from fedal.sample_layout import BY_COLUMN, BY_SAMPLE, SampleLayout
from fedal.simulate.attackers import forger
from fedal.simulate.build import (
    axis_lengths,
    build_federation,
    build_server,
    model_of,
)
from fedal.simulate.checks import refuse_misfits, refuse_unfit_task
from fedal.simulate.cohorts import StackPool, cohort_kinds, stacking
from fedal.simulate.stacking import Kind, resolve_stacked, stacks
from fedal.simulate.staged import CustomModels, Staged
from fedal.theory.view import FederationView
from fedal.user_code import is_import_path
from fedal.wire import Wire


@dataclass(frozen=True)
class Assembly:
    """A federation ready to run, and what the record needs about it."""

    federation: Federation
    learners: dict[str, Learner]
    model_names: dict[str, str]
    view: FederationView


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
    staged = Staged(config, split)
    models = {
        name: f"<{type(custom[name]).__name__}>" if name in custom else model_of(config, name, table.model, split.task)
        for table in config.client_tables
        for name in [str(table.name)]
    }
    # Learners that are made later: the first of each kind is enough here to check what it supports.
    first = {*{model: name for name, model in reversed(models.items())}.values()}
    of_each_kind = {name: staged.learner(name, models[name], custom.get(name)) for name in models if name in first}
    kinds = cohort_kinds(config, split, models, of_each_kind, custom) if config.is_partial else {}
    learners = {
        name: of_each_kind.get(name) or staged.learner(name, models[name], custom.get(name))
        for name in models
        if cluster is None and rest is None and name not in kinds
    }
    width = refuse_misfits(method, {**of_each_kind, **learners}, models)
    phase_done: PhaseDone = lambda client, phase: watch.phase_done(client, phase)  # noqa: E731 - it may be replaced later
    form: Form | None = None
    if cluster is not None:
        make = partial(build_clients, config.to_toml(), split, models)
        seconds = {models[name]: _pass_seconds(learner, staged.public) for name, learner in of_each_kind.items()}
        remote = cluster.place({name: seconds[models[name]] for name in config.client_names}, make, phase_done)
        learners = {player.names[0]: player.learner for player in remote}
        players: list[Player] = [*remote]
    elif config.is_partial:
        players, learners, form = _drawn(config, split, models, kinds, learners, custom, staged, phase_done, rest)
    else:
        players = _players(config, split, models, learners, staged, phase_done)
    server = build_server(config, split.task, staged.public, models, width, workers, _layout_of(players))
    wire = Wire(method.up, method.down, axis_lengths(config, split.task, width), dtype_of(config.precision))
    federation = build_federation(config, players, server, wire, workers, watch)
    federation.forge, federation.form = forger(config), form
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
    staged: Staged,
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
        logic = staged.stack_logic(names, together, phase_done)
        players.append(StackPlayer(logic, members))
    return players + [LocalPlayer(staged.logic(name, learner, phase_done)) for name, learner in single.items()]


def _layout_of(players: Sequence[Player]) -> SampleLayout:
    """The layout in which the server computes: by column, if that is how every client's logits are held already."""
    stacks = [cast(StackedLearner, each.logic.learner) for each in players if isinstance(each, StackPlayer)]
    by_column = len(stacks) == len(players) and all(stack.is_class_major for stack in stacks)
    return BY_COLUMN if by_column else BY_SAMPLE


def _drawn(
    config: Config,
    split: DataSplit,
    models: Mapping[str, str],
    kinds: Mapping[str, Kind],
    made: Mapping[str, Learner],
    custom: CustomModels,
    staged: Staged,
    phase_done: PhaseDone,
    rest: RestFiles | None,
) -> tuple[list[Player], dict[str, Learner], Form | None]:
    """The players and learners of a run with cohorts, and how the players of a round become stacks.

    Clients that can be stacked are in memory only while they take part, apart from their states; with `rest`, so are
    all others, and the states are not.
    """
    pool = StackPool(config, split, staged, kinds, models, custom, phase_done)

    def built(name: str, first: bool) -> ClientLogic:
        is_known = not first or (name not in custom and not is_import_path(models[name]))  # one of each such model is
        return staged.logic(name, staged.learner(name, models[name], custom.get(name), is_known=is_known), phase_done)

    clients = RestingClients(built, RestInMemory() if rest is None else rest, pool)
    resting = [name for name in config.client_names if name not in made]
    learners = {**made, **{name: cast(Learner, RestingLearner(name, clients)) for name in resting}}
    players: list[Player] = [RestingPlayer((name,), clients) for name in resting]
    players += [LocalPlayer(staged.logic(name, learner, phase_done)) for name, learner in made.items()]
    return (
        players,
        {name: learners[name] for name in config.client_names},
        stacking(kinds, clients, pool) if kinds else None,
    )


def build_clients(
    config_toml: str, split: DataSplit, models: Mapping[str, str], names: tuple[str, ...], phase_done: PhaseDone
) -> dict[str, ClientLogic]:
    """The named clients, for a worker process that holds only these."""
    staged = Staged(Config(**tomllib.loads(config_toml)), split)
    return {name: staged.logic(name, staged.learner(name, models[name]), phase_done) for name in names}
