"""A plain FedAvg by autograd whose local loss is given, and the federation to compare it with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal.engine.loop import Federation
from splits import build_of_table_models, split_of_classes

CLIENTS = {"client-00": (0, 1), "client-01": (1, 2)}
TAU, ROUNDS, LR = 3, 3, 0.01


def federation_of(method: str, **options: Any) -> Federation:
    split = split_of_classes(CLIENTS)
    return build_of_table_models(method, clients=2, split=split, precision="fp64", options={"tau": TAU, **options})


# a plain FedAvg whose local loss is given


@dataclass
class Step:
    """One batch of one client: the model that learns, the global model of the round, and all clients' data."""

    model: nn.Module
    past: nn.Module
    x: Tensor
    y: Tensor
    n: str
    t: int
    federation: Federation

    @property
    def z(self) -> Tensor:
        return self.model(self.x)

    @property
    def known(self) -> Tensor:
        with torch.no_grad():
            return self.past(self.x)


LocalLoss = Callable[[Step], Tensor]


def plain(
    federation: Federation,
    loss: LocalLoss,
    after: Callable[..., None] = lambda *_: None,
    tune: Callable[..., None] = lambda *_: None,
) -> dict[str, nn.Module]:
    """Rounds of FedAvg with `loss` by autograd; `after(t, models, past)` sees the models before they are averaged.

    `tune(t, student, teachers)` may change the average, which it gets with the models before.
    """
    models = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
    first = next(iter(models.values())).state_dict()
    for model in models.values():
        model.load_state_dict(first)
    uniform = federation.server.hp.weighting == "uniform"
    samples = {n: 1 if uniform else len(logic.private) for n, logic in federation.clients.items()}
    for t in range(ROUNDS):
        past = copy.deepcopy(next(iter(models.values())))
        for n, model in models.items():
            adam = torch.optim.Adam(model.parameters(), lr=LR)
            for i in range(TAU):
                x, y = federation.clients[n].private.batch(t, i)
                adam.zero_grad()
                loss(Step(model, past, x, y, n, t, federation)).backward()
                adam.step()
        after(t, models, past)
        teachers = {n: copy.deepcopy(model) for n, model in models.items()}
        average(models, samples)
        student, *others = models.values()
        tune(t, student, teachers)
        for model in others:
            model.load_state_dict(student.state_dict())
    return models


def average(models: dict[str, nn.Module], samples: dict[str, int]) -> None:
    states = {n: model.state_dict() for n, model in models.items()}
    total = sum(samples.values())
    mean = {name: sum(states[n][name] * samples[n] / total for n in models) for name in next(iter(states.values()))}
    for model in models.values():
        model.load_state_dict(mean)


def equal(federation: Federation, models: dict[str, nn.Module]) -> None:
    for n, model in models.items():
        for name, value in model.state_dict().items():
            torch.testing.assert_close(federation.clients[n].learner.weights()[name], value, rtol=0, atol=1e-8)


def ce(step: Step) -> Tensor:
    return F.cross_entropy(step.z, step.y)


def divergence(teacher: Tensor, student: Tensor, T: float) -> Tensor:
    target = torch.softmax(teacher / T, -1)
    return T**2 * F.kl_div(torch.log_softmax(student / T, -1), target, reduction="batchmean")
