"""Stacks for one round: the clients of a cohort that have one architecture, in roster order.

Which clients are in which stack is a function of the cohort alone, so it is the same after a resume. The networks of
the stacks are made once and remain: for a round, they take the states of its clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from torch import nn

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.engine.loop import Form
from fedal.engine.player import PhaseDone, Player, StackPlayer
from fedal.engine.resting import RestingClients, RestingStack
from fedal.learners.base import Learner, State
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner
from fedal.simulate.stacking import Kind, grouped, kinds, module_of, resolve_stacked
from fedal.simulate.staged import CustomModels, Staged
from fedal.user_code import is_import_path


def cohort_kinds(
    config: Config,
    split: DataSplit,
    models: Mapping[str, str],
    learners: Mapping[str, Learner],
    custom: CustomModels,
) -> dict[str, Kind]:
    """The kinds of the clients that can be stacked when they are drawn; `learners` has one of each named model.

    A client whose model is named by import path is in no stack: its factory may return another architecture for each.
    """
    made = {models[name]: module_of(learner) for name, learner in learners.items() if name not in custom}

    def module(name: str) -> nn.Module | None:
        if name in custom:
            own = custom[name]
            return own if isinstance(own, nn.Module) else None
        return None if is_import_path(models[name]) else made[models[name]]

    alike = [name for name in config.client_names if split.imputed(name) is None]  # a stack has one input
    return kinds(config, models, {name: module(name) for name in alike}, split.dataset.sample_shape)


class _Net(NamedTuple):
    """The networks of one stack, and the learners whose tensors are views of them."""

    together: StackedLearner
    members: list[TorchLearner]


class StackPool:
    """The networks of the stacks of a round, free while no round is run."""

    def __init__(
        self,
        config: Config,
        split: DataSplit,
        staged: Staged,
        kinds: Mapping[str, Kind],
        models: Mapping[str, str],
        custom: CustomModels,
        phase_done: PhaseDone,
    ) -> None:
        self._seed, self._rank = config.seed, len(split.dataset.sample_shape)
        self._as_single = resolve_stacked(config, models) == "auto"
        self._staged, self._kinds, self._models, self._custom = staged, kinds, models, custom
        self._phase_done = phase_done
        self._free: dict[tuple[Kind, int], list[_Net]] = {}
        self._used: dict[tuple[str, ...], _Net] = {}

    def take(self, names: tuple[str, ...]) -> StackPlayer:
        """Free networks, made to be those of these clients, whose states they do not have yet."""
        free = self._free.get(self._size(names))
        net = self._used[names] = free.pop() if free else self._made(names)
        for name, member in zip(names, net.members, strict=True):
            member.stand_for(self._seed, name)
        logic = self._staged.stack_logic(names, net.together, self._phase_done)
        assert not logic.kept, "what each client keeps differs between the clients of a cohort"
        return StackPlayer(logic, dict(zip(names, net.members, strict=True)))

    def initial_state(self, client: str) -> State:
        """The state of a client that has not taken part yet."""
        state = self._staged.initial_state(client, self._models[client], self._custom.get(client))
        return {"learner": state, "method": {}}

    def give_back(self, player: StackPlayer) -> None:
        """The round of these clients is over."""
        self._free.setdefault(self._size(player.names), []).append(self._used.pop(player.names))

    def keep(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Drops the networks that a round with these stacks does not need: another cohort may be of other kinds."""
        sizes = [self._size(names) for names in groups]
        self._free = {size: free[: sizes.count(size)] for size, free in self._free.items() if size in sizes}

    def _size(self, names: tuple[str, ...]) -> tuple[Kind, int]:
        return self._kinds[names[0]], len(names)

    def _made(self, names: tuple[str, ...]) -> _Net:
        made = [self._staged.learner(n, self._models[n], self._custom.get(n), is_known=True) for n in names]
        members = [cast(TorchLearner, learner) for learner in made]
        return _Net(StackedLearner(members, self._rank, as_single=self._as_single, apart=True), members)


def stacking(kinds: Mapping[str, Kind], clients: RestingClients, pool: StackPool) -> Form:
    """Makes stacks of the resting clients of a round that have one architecture."""

    def form(present: Sequence[Player]) -> list[Player]:
        names = [name for player in present for name in player.names]
        groups = grouped(kinds, names)
        pool.keep(groups)
        stacks = {group[0]: RestingStack(group, clients) for group in groups}
        others = {name for group in groups for name in group[1:]}
        return [stacks.get(player.names[0], player) for player in present if player.names[0] not in others]

    return form
