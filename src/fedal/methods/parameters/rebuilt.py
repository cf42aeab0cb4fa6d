"""A server that rebuilds the clients' models from their weights, to teach with them or to learn through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fedal.errors import NotApplicableError
from fedal.lazy import Tensor
from fedal.learners.base import Learner
from fedal.methods.server import ServerLogic, ServerSetup


class RebuildingServer(ServerLogic):
    """Builds learners from names of models and weights. Models passed as objects have no name to build from."""

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        models, make_learner = dict(setup.architectures), setup.make_learner
        objects = [name for name in models.values() if name.startswith("<")]
        if objects:
            raise NotApplicableError(
                f"the server must rebuild every model, but {objects[0]} has no name. Name it package.module:factory."
            )
        assert make_learner is not None
        self.new_learner: Callable[[str], Learner] = lambda client_id: make_learner(models[client_id], None)
        # Building a model takes longer than a step. A learner is reused, but nothing of what it held before.
        self._reused = cache(lambda client_id, role: self.new_learner(client_id))

    def rebuilt(self, client_id: str, weights: Mapping[str, Tensor], role: str = "teacher") -> Any:
        """A learner with the architecture of a client, these weights and a new optimizer; it has all optional verbs.

        It is valid until the next call with this client and role.
        """
        learner = self._reused(client_id, role)
        learner.load_state_dict({"model": dict(weights), "optimizer": {}, "step": 0})
        return learner
