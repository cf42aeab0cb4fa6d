"""Optimizer steps: every method takes as many as it declares, and two local stages take twice as many."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fedal import methods
from fedal.learners.torch_learner import TorchLearner
from splits import NETS, build_federation, build_of_table_models, differing_clients, mlp, run_rounds

ROUNDS = 4
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "local": [{"local_stages": 2}],
    "fedavg": [{"local_stages": 2}],
    "fd": [{"local_stages": 2}],
    "fedproto": [{"local_stages": 2}],
    "fedmd": [{"distillation": 0.0}, {"replay": 2}, {"replay": 2, "distillation": 0.0}],
    "fedmd-lf": [{"distillation": 0.0}, {"distillation": 0.0, "keep_global": 0.0}, {"replay": 2}],
    "fedal": [
        {"distillation": 0.0, "keep_global": 0.0},
        {"adversarial": 0.0, "distillation": 0.0, "keep_global": 0.0},
        {"replay": 2},
        {"replay": 2, "distillation": 0.0},
        {"replay": 2, "distillation": 0.0, "keep_global": 0.0},
    ],
    "feddf-al": [{"adversarial": 0.0, "distillation": 0.0, "keep_global": 0.0}, {"replay": 2}],
    "feddf": [{"transfer": "server", "server_steps": 2}, {"distillation": 0.0}, {"replay": 2}],
    "hfd": [{"joint": True}, {"distillation_steps": 5}],
    "fccl": [{"pretrain_iterations": 0}, {"pretrain_iterations": 5}, {"correlation": 0.0, "pretrain_iterations": 0}],
    "fccl+": [{"correlation": 0.0}, {"correlation": 0.0, "similarity": 0.0}],
    "cfd": [{"warmup": 0}, {"warmup": 5}],
    "mhat": [{"warmup": 5}, {"distillation": 0.0}],
    "perfed-ckt": [{"clusters": 1}, {"distillation": 0.0}],
    "fedproto-public": [{"distillation": 0.0}],
    "fedkt": [{"teacher_iterations": 3}, {"teacher_iterations": 3, "student_iterations": 3, "teachers": 2}],
    "fedntd": [{"local_stages": 2}],
    "fedcurv": [{"local_stages": 2}],
    "fedreg": [{"local_stages": 2}],
    "fedcvae": [{"autoencoder_steps": 5}],
}
CASES = [(name, options) for name in methods.MODULES for options in [{}, *OPTIONS.get(name, [])]]


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))
def test_a_client_takes_as_many_steps_as_its_method_declares(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "perfed-ckt":  # a client alone in its cluster takes no step: one cluster has no such client
        options = {"clusters": 1, **options}
    taken: Counter[int] = Counter()
    learn = TorchLearner.learn

    def counting(learner: TorchLearner, *gradients: Any, **more: Any) -> None:
        taken[id(learner)] += 1
        learn(learner, *gradients, **more)

    monkeypatch.setattr(TorchLearner, "learn", counting)
    federation = run_rounds(build_of_table_models(name, tau=3, **options), ROUNDS)
    method = methods.get(name)
    declared = method.steps(method.options(tau=3, **options), ROUNDS)
    trained = [getattr(logic, "autoencoder", logic).learner for logic in federation.clients.values()]
    assert {taken[id(learner)] for learner in trained} == {declared}


def test_methods_with_a_public_stage_take_twice_the_steps_of_local_training() -> None:
    steps = {name: methods.get(name).steps(methods.get(name).options(tau=5), 40) for name in methods.names()}
    assert steps["local"] == steps["fedavg"] == steps["fd"] == steps["fedproto"] == 200
    assert steps["fedmd"] == steps["fedal"] == steps["feddf"] == 400
    for name in ("local", "fedavg", "fd", "fedproto"):
        method = methods.get(name)
        assert method.steps(method.options(tau=5, local_stages=2), 40) == 400


@pytest.mark.parametrize(("method", "nets"), [("local", NETS), ("fedavg", {"anna": mlp, "ben": mlp})])
def test_two_local_stages_are_a_round_of_twice_as_many_steps(method: str, nets: dict[str, Any]) -> None:
    doubled = run_rounds(build_federation(method, nets=nets, tau=2, local_stages=2), 3)
    assert differing_clients(doubled, run_rounds(build_federation(method, nets=nets, tau=4), 3)) == []
    assert differing_clients(doubled, run_rounds(build_federation(method, nets=nets, tau=2), 3)) == list(nets)
