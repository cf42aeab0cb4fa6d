"""Stacked clients in a federation: same numbers as single ones, reproducible bits, and which clients are stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedal
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.data.split import DataSplit
from fedal.engine.threads import thread_workers
from fedal.errors import ConfigError, Stopped
from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner
from fedal.models import build
from fedal.sample_layout import BY_COLUMN, BY_SAMPLE
from fedal.simulate.assemble import Assembly, assemble
from fedal.simulate.stacking import STACKABLE_METHODS, resolve_stacked, stacks
from observers import Notes, StopAt
from splits import InOrder, same_bits, with_logics


def split_of(config: Config, side: int = 8, classes: int = 5) -> DataSplit:
    generator = np.random.Generator(np.random.Philox(key=3))
    n = 40 + 24 * len(config.client_names)
    x = generator.standard_normal((n, 1, side, side), dtype=np.float32)
    y = generator.integers(0, classes, n)
    data = Dataset("noise", x, y, x[:30], y[:30], classes)
    parts = np.split(np.arange(40, n), len(config.client_names))
    return DataSplit(data, dict(zip(config.client_names, parts, strict=True)), np.arange(40), x[:40], 0)


def trained(config: Config, rounds: int = 2, workers: int = 1, side: int = 8) -> Assembly:
    with thread_workers(workers) as pool:
        assembly = assemble(config, split_of(config, side), pool)
        for t in range(rounds):
            assembly.federation.run_round(t)
        return assembly


def small(method: str = "fedal", **settings: Any) -> Config:
    settings = {"models": "cnn-small", "clients": 7, "batch_size": 8, "precision": "fp64", "stacked": True} | settings
    return Config(method=method, **settings)


def states(assembly: Assembly) -> dict[str, Any]:
    return {name: learner.state_dict() for name, learner in assembly.learners.items()}


@pytest.mark.parametrize("local_loss", ["cross-entropy", "balanced"])
@pytest.mark.parametrize("method", STACKABLE_METHODS)
def test_a_stacked_federation_computes_the_same_numbers(method: str, local_loss: str) -> None:
    config = small(method, local_loss=local_loss)
    stacked, single = trained(config), trained(config.with_(stacked=False))
    assert isinstance(with_logics(stacked.federation).clients["client-04"].learner, StackedLearner)
    for name, learner in single.learners.items():
        for key, value in learner.weights().items():  # type: ignore[attr-defined]
            assert torch.allclose(stacked.learners[name].weights()[key], value, rtol=0, atol=1e-12), (name, key)  # type: ignore[attr-defined]
    assert stacked.federation.wire.state_dict() == single.federation.wire.state_dict()


@pytest.mark.parametrize("distance", ["l1", "mse"])
def test_every_distance_of_fedmd_is_a_mean_per_client(distance: str) -> None:
    config = small("fedmd", distance=distance)
    stacked, single = trained(config, 1), trained(config.with_(stacked=False), 1)
    for name, learner in single.learners.items():
        for key, value in learner.weights().items():  # type: ignore[attr-defined]
            assert torch.allclose(stacked.learners[name].weights()[key], value, rtol=0, atol=1e-12)  # type: ignore[attr-defined]


def test_lenet5_clients_learn_the_same_stacked_or_not() -> None:
    config = small(models="lenet5", clients=5, stacked="auto", tau=2)
    stacked, single = trained(config, 1, side=28), trained(config.with_(stacked=False), 1, side=28)
    assert isinstance(with_logics(stacked.federation).clients["client-00"].learner, StackedLearner)
    for name, learner in single.learners.items():
        for key, value in learner.weights().items():  # type: ignore[attr-defined]
            assert torch.allclose(stacked.learners[name].weights()[key], value, rtol=0, atol=1e-12), (name, key)  # type: ignore[attr-defined]


def test_one_worker_and_three_are_bit_identical() -> None:
    config = small(clients=13, precision="fp32")
    assert same_bits(states(trained(config, workers=1)), states(trained(config, workers=3)))


@pytest.mark.parametrize(
    ("models", "stacked", "by_column"),
    [
        ("mlp-small", True, True),
        ("mlp-small", "auto", False),
        ("mlp-small", False, False),
        ("mlp-small,cnn-small", True, False),
        ("lenet5", True, False),
    ],
)
def test_the_server_computes_by_column_if_all_logits_are_held_so(
    models: str, stacked: bool | str, by_column: bool
) -> None:
    assembly = trained(small(models=models, clients=4, stacked=stacked), rounds=0, side=28)
    server = with_logics(assembly.federation).server
    assert server.discriminator._layout is (BY_COLUMN if by_column else BY_SAMPLE)


def test_stacked_mlps_and_their_server_compute_the_same_numbers() -> None:
    config = small(models="mlp-small")
    stacked, single = trained(config), trained(config.with_(stacked=False))
    for name, learner in single.learners.items():
        for key, value in learner.weights().items():  # type: ignore[attr-defined]
            assert torch.allclose(stacked.learners[name].weights()[key], value, rtol=0, atol=1e-12), (name, key)  # type: ignore[attr-defined]


def learners_of(models: dict[str, str], shape: tuple[int, ...] = (1, 28, 28)) -> dict[str, TorchLearner]:
    return {name: TorchLearner(build(model, shape, 10)) for name, model in models.items()}


def stacks_of(config: Config, models: dict[str, str], shape: tuple[int, ...] = (1, 28, 28)) -> list[tuple[str, ...]]:
    return stacks(config, models, learners_of(models, shape), shape)


def test_stacks_follow_client_order_and_leave_other_models_alone() -> None:
    models = {f"c{i}": "lenet5" if i % 2 else "wrn-10-1" for i in range(14)}
    assert stacks_of(small(), models) == [("c1", "c3", "c5", "c7", "c9"), ("c11", "c13")]
    assert stacks_of(small(), {"a": "lenet5", "b": "cnn-small"}) == []  # no second client to stack with
    assert stacks_of(small(), {"a": "cnn-small-bn", "b": "lenet5", "c": "cnn-small-bn"}) == [("a", "c")]
    assert stacks_of(small(stacked=False), dict.fromkeys("abc", "lenet5")) == []


def test_auto_stacks_the_clients_that_keep_their_bits() -> None:
    auto = small(stacked="auto", batch_size=32)
    mixed = {f"c{i}": ("mlp-small", "cnn-small", "lenet5")[i % 3] for i in range(9)}
    assert stacks_of(auto, mixed) == [("c0", "c3", "c6")]
    assert stacks_of(auto.with_(stacked=True), mixed) == [("c0", "c3", "c6"), ("c1", "c4", "c7"), ("c2", "c5", "c8")]
    assert stacks_of(auto.with_(batch_size=9), mixed) == []  # parts of a batch would begin between two vectors
    absent = auto.with_(attackers="client-03:absent")
    assert stacks_of(absent, {f"client-{i:02}": "mlp-small" for i in range(6)})[0][3] == "client-04"


def test_a_users_own_chain_of_layers_is_stacked_and_any_other_model_is_not() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    def chain(hidden: int) -> TorchLearner:
        return TorchLearner(nn.Sequential(nn.Linear(30, hidden), nn.ReLU(), nn.Linear(hidden, 2)))

    learners = {"a": chain(64), "b": chain(32), "c": TorchLearner(Own()), "d": chain(64), "e": object()}
    models = dict.fromkeys(learners, "<Sequential>")
    for stacked in ("auto", True):
        config = small(stacked=stacked, batch_size=32)
        assert stacks(config, models, learners, (30,)) == [("a", "d")]  # type: ignore[arg-type]


def test_small_networks_make_large_stacks() -> None:
    models = {f"c{i}": "mlp-small" for i in range(40)}
    assert [len(names) for names in stacks_of(small(), models, (30,))] == [32, 8]
    assert [len(names) for names in stacks_of(small(), models, (784,))] == [5] * 8


def test_auto_is_recorded_as_true_for_lenet5_and_as_false_if_nothing_can_be_stacked() -> None:
    lenets, mixed = dict.fromkeys("abc", "lenet5"), {"a": "lenet5", "b": "cnn-small"}
    auto = small(stacked="auto")
    assert resolve_stacked(auto, lenets) is True
    assert resolve_stacked(auto, mixed) == "auto"
    assert resolve_stacked(auto.with_(stacked=False), lenets) is False
    for other in (
        {"method": "fedavg"},
        {"optimizer": "sgd"},
        {"fused": False},
        {"engine": "ray"},
        {"instruments": ("zeta",)},
    ):
        assert resolve_stacked(auto.with_(**{"options": {}, **other}), lenets) is False, other


@pytest.mark.parametrize("method", STACKABLE_METHODS)
def test_auto_has_the_bits_of_single_clients(method: str) -> None:
    config = small(method, models="mlp-small", batch_size=16, precision="fp32", stacked="auto", weight_decay=0.01)
    stacked, single = trained(config), trained(config.with_(stacked=False))
    assert isinstance(with_logics(stacked.federation).clients["client-04"].learner, StackedLearner)
    assert same_bits(states(stacked), states(single))
    assert same_bits(stacked.federation.server.state_dict(), single.federation.server.state_dict())


def test_a_default_run_records_what_its_bits_need(tmp_path: Path) -> None:
    config = Config(models="mlp-small", clients=3, rounds=2, tau=2, batch_size=16, eval_every=4)
    runs = [fedal.run(config.with_(stacked=s), tmp_path / str(s)) for s in ("auto", False)]
    assert 'stacked = "auto"' in (tmp_path / "auto" / "config.toml").read_text()
    assert runs[0].metrics[-1]["test_accuracy"] == runs[1].metrics[-1]["test_accuracy"]
    longer = fedal.resume(tmp_path / "auto", iterations=8)
    assert longer.metrics[-1]["iteration"] == 8


def test_what_cannot_be_stacked_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"stacked = true: fedavg cannot be stacked.*set it to false"):
        resolve_stacked(small("fedavg"), dict.fromkeys("abc", "lenet5"))
    with pytest.raises(ConfigError, match=r"stacked = 'perhaps': expected true, false or auto"):
        small(stacked="perhaps")


def test_a_stack_sits_out_as_a_whole() -> None:
    config = small(clients=7)
    assembly = assemble(config, split_of(config), InOrder())
    present = assembly.federation.run_round(0, lambda client, exchange: client == "client-01" and exchange == 1)
    assert present == ["client-05", "client-06"]
    steps = {name: state["step"] for name, state in states(assembly).items()}
    assert steps == {name: config.tau + (config.tau if name in present else 0) for name in config.client_names}


def test_a_resumed_stacked_run_is_bit_identical(tmp_path: Path) -> None:
    config = Config(models="cnn-small", clients=6, iterations=15, stacked=True, checkpoint_every=1, eval_every=5)
    whole = fedal.run(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "parts", callbacks=[StopAt(10)])
    parts = fedal.resume(tmp_path / "parts")
    assert "stacked = true" in (tmp_path / "parts" / "config.toml").read_text()
    for name in config.client_names:
        files = [run.path / "models" / f"{name}.safetensors" for run in (whole, parts)]
        assert files[0].read_bytes() == files[1].read_bytes()
    without_time = [{k: v for k, v in row.items() if k != "seconds"} for row in parts.metrics]
    assert without_time == [{k: v for k, v in row.items() if k != "seconds"} for row in whole.metrics]


def test_a_run_says_why_none_of_its_models_can_be_stacked(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1))

    config = Config(method="local", clients=2, models="mlp-small", stacked=True, iterations=1, batch_size=4)
    for folder, custom in (("none", {"client-00": Own(), "client-01": Own()}), ("one", {"client-00": Own()})):
        notes = Notes()
        fedal.run(config, tmp_path / folder, models=custom, callbacks=[notes])
        warnings = [text for text in notes.of("warning") if "stacked" in text]
        assert len(warnings) == (folder == "none")
        assert all(text.startswith("stacked = true has no effect") and "Own" in text for text in warnings)
