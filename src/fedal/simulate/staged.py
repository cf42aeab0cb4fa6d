"""The data of a split, staged on the run's device, and the clients built on them: one by one, or as a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.data.streams import PrivateData, PrivateStack, Samples
from fedal.engine.player import PhaseDone
from fedal.learners.base import Learner, State
from fedal.learners.module_state import whole_state
from fedal.learners.stacked.learner import StackedLearner
from fedal.methods.client import ClientLogic
from fedal.precision import dtype_of
from fedal.simulate.build import build_client, build_learner, build_model, private_data

CustomModels = Mapping[str, nn.Module | Learner]
"""client -> a module to train, or a learner of any framework."""


class Staged:
    """The inputs and labels of a split, and what is built on them."""

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

    def initial_state(self, client: str, model: str, custom: nn.Module | Learner | None = None) -> State:
        """The state of a client that has not learned yet, in the form of its learner."""
        if custom is not None:  # the caller's module was not checked yet
            return self.learner(client, model, custom).state_dict()
        made = build_model(self._config, self._split.task, client, model)
        assert isinstance(made, nn.Module)
        return {"model": whole_state(made), "optimizer": {}, "step": 0}

    def logic(self, client: str, learner: Learner, phase_done: PhaseDone) -> ClientLogic:
        done = partial(phase_done, client)
        return build_client(self._config, client, learner, self.private(client), self.public_for(client), done)

    def public_for(self, client: str) -> Samples:
        """The public samples as the client sees them."""
        return self.public.with_imputed(self._split.imputed(client))

    def stack_logic(self, names: Sequence[str], together: StackedLearner, phase_done: PhaseDone) -> ClientLogic:
        """The client's half of the method for several clients that learn as one."""
        private = PrivateStack([self.private(name) for name in names])

        def all_done(phase: str) -> None:
            for name in names:
                phase_done(name, phase)

        return build_client(self._config, ", ".join(names), together, private, self.public, all_done)
