"""Keeps each client's best model on its own held-out data, next to the final one (setting `keep_best`).

A model is judged at every recorded end of a round by the run's headline metric on the client's `own_validation` data.
Of equally good models the earliest is kept. Nothing of the training depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedal.learners.base import Frozen, State, copied
from fedal.metrics.table import METRICS, Column
from fedal.theory.view import Columns, FederationView

PREFIX = "best_"


@dataclass
class BestModel:
    """A client's best model so far."""

    value: float
    iteration: int
    model: State


class _Predictor:
    """A fixed model that can be evaluated like a learner."""

    def __init__(self, model: Frozen) -> None:
        self._model = model

    def predict(self, x: Tensor) -> Tensor:
        return self._model(x)


class BestModels:
    """The best models of all clients; empty unless the run keeps them."""

    def __init__(self, view: FederationView) -> None:
        self._view, self._device = view, view.config.device
        self._judge = Column(METRICS[view.metrics[0]], "own_validation")
        self._best: dict[str, BestModel] = {}

    def judge(self, iteration: int, tested: Columns) -> None:
        """Keeps the models that are better than those before; a client without a value has no judge yet."""
        if not self._view.config.keep_best:
            return
        for client, values in tested.items():
            if self._judge.key not in values:
                continue
            value, best = values[self._judge.key], self._best.get(client)
            if best is None or self._judge.rank(value) > self._judge.rank(best.value):
                model = copied(self._view.learners[client].frozen("eval").state_dict(), self._device)
                self._best[client] = BestModel(value, iteration, model)

    def columns(self) -> Columns:
        """The best models on all evaluation data, as columns `best_test_accuracy`, and their iterations."""
        return {
            client: {f"{PREFIX}iteration": best.iteration, **self._evaluated(client)}
            for client, best in self._best.items()
        }

    def _evaluated(self, client: str) -> dict[str, float]:
        learner: Any = _Predictor(self.model(client))
        on = [data.evaluate(learner, whole=True) for data in self._view.sets(client)]
        return {f"{PREFIX}{name}": value for each in on for name, value in each.items()}

    def model(self, client: str) -> Frozen:
        found = self._view.learners[client].frozen("eval")
        found.load_state_dict(self._best[client].model)
        return found

    @property
    def states(self) -> dict[str, State]:
        """client -> its best model, as a learner exports it."""
        return {client: {"model": best.model.get("model", best.model)} for client, best in self._best.items()}

    def state_dict(self) -> dict[str, Any]:
        return {client: vars(best) for client, best in self._best.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best = {
            client: BestModel(float(best["value"]), int(best["iteration"]), copied(best["model"], self._device))
            for client, best in state.items()
        }
