"""Stacks for one round: the bits of single clients or of any other way to rest, whatever the size and kinds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from test_stacking import split_of
from torch import nn

import fedal
from e2e.lives import outcome
from fedal.config import Config
from fedal.engine.resting import RestingPlayer, RestingStack
from fedal.errors import CheckpointError, ConfigError, Stopped
from fedal.learners.torch_learner import TorchLearner
from fedal.records.rest import RestFolder, resolved
from fedal.simulate.assemble import Assembly, assemble
from fedal.simulate.estimate import estimate
from fedal.simulate.participation import absence, cohort
from fedal.simulate.stacking import resolve_stacked
from observers import StopAt
from splits import InOrder, restore, same_bits, state_of

SETTINGS: dict[str, Any] = dict(
    method="fedal", clients=14, models=["mlp-small", "cnn-small-bn"], tau=2, batch_size=32, rounds=6, participation=9,
    eval_every=4, eval_samples=60, eval_after_local=True, workers=2, checkpoint_every=2, stacked=True,
)  # fmt: skip


def assembled(config: Config, rest: RestFolder | None = None, **given: Any) -> Assembly:
    return assemble(config, split_of(config), InOrder(), rest=rest, **given)


def run_round(assembly: Assembly, config: Config, t: int) -> list[tuple[str, ...]]:
    """The stacks of the round."""
    federation = assembly.federation
    assert federation.run_round(t, absence(config, t)) == [n for n in config.client_names if n in cohort(config, t)]
    return [player.names for player in federation._begun if isinstance(player, RestingStack)]


def learned(assembly: Assembly, names: Any) -> dict[str, Any]:
    return {name: assembly.learners[name].state_dict() for name in names}


@pytest.mark.parametrize("stacked", ["auto", True])
@pytest.mark.parametrize("method", ["fedal", "local", "kt-pfl", "expguard"])
def test_a_cohort_of_mlps_has_the_bits_of_single_clients(method: str, stacked: Any) -> None:
    """With `stacked = true`, the same numbers in double precision; client by client, also after unequal rounds."""
    precision = "fp32" if stacked == "auto" else "fp64"
    sizes = dict(clients=12, participation=7, batch_size=16, tau=2, precision=precision)
    config = Config(method=method, models="mlp-small", stacked=stacked, **sizes)
    split = split_of(config, classes=16)
    together, single = (assemble(each, split, InOrder()) for each in (config, config.with_(stacked=False)))
    turns: Counter[str] = Counter()
    for t in range(4):
        assert [len(names) for names in run_round(together, config, t)] == [7]
        run_round(single, config, t)
        turns.update(cohort(config, t))
        assert set(together.federation.observed()) == set(single.federation.observed())
    assert len({*turns.values()}) > 1  # members of one stack have taken different numbers of steps
    for name in turns:
        found, expected = (each.learners[name].state_dict() for each in (together, single))
        if stacked == "auto":
            assert same_bits(found, expected), name
        for key, value in expected["model"].items():
            assert torch.allclose(found["model"][key], value, rtol=0, atol=1e-12 if stacked is True else 0), key
    assert together.federation.wire.state_dict() == single.federation.wire.state_dict()


def test_stacks_follow_the_roster_and_differ_from_round_to_round() -> None:
    """Nine of fourteen clients with two architectures: stacks of any size, and clients left alone."""
    config = Config(**SETTINGS, lr=0.01).with_(clients=14, models=["cnn-small", "lenet5"], batch_size=8)
    assembly = assemble(config, split_of(config, side=28), InOrder())
    kinds, sizes = assembly.model_names, set()
    for t in range(8):
        drawn = [name for name in config.client_names if name in cohort(config, t)]
        expected = []
        for kind in ("cnn-small", "lenet5"):
            alike = [name for name in drawn if kinds[name] == kind]
            chunks = [tuple(alike[start : start + 5]) for start in range(0, len(alike), 5)]
            expected += [chunk for chunk in chunks if len(chunk) > 1]
            sizes |= {len(chunk) for chunk in chunks}
        assert sorted(run_round(assembly, config, t)) == sorted(expected)
    assert {1, 5} < sizes


class Own(nn.Module):
    """No chain of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x.flatten(1))
        return y


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.3), nn.Flatten(), nn.Linear(72, width), nn.Linear(width, 5))


def test_clients_at_rest_in_memory_and_on_disk_have_the_same_bits(tmp_path: Path) -> None:
    """Of the table, custom chains of two widths with dropout, and a model that cannot be stacked."""
    config = Config(**SETTINGS)
    torch.manual_seed(3)
    nets = {f"client-{i:02}": net(8 if i % 2 else 16) for i in range(5)} | {"client-05": Own(), "client-06": Own()}
    files = RestFolder(tmp_path / "rest")
    files.open()
    disk, memory = (assembled(config, rest, custom_models=nets) for rest in (files, None))
    found: set[tuple[str, ...]] = set()
    for t in range(6):
        files.at(t + 1)
        stacks = run_round(disk, config, t)
        assert stacks == run_round(memory, config, t)
        found |= {*stacks}
    assert not any({"client-05", "client-06"} & {*names} for names in found)
    assert any("client-00" in names for names in found)
    everyone = config.client_names
    assert same_bits(learned(disk, everyone), learned(memory, everyone))
    states = state_of(disk.federation)
    with pytest.raises(CheckpointError, match="is in a file at rest"):
        restore(assembled(config, custom_models=nets).federation, states)
    states["clients"] = resolved(states["clients"], tmp_path / "rest")
    again = assembled(config, custom_models=nets)
    restore(again.federation, states)
    assert run_round(again, config, 6) == run_round(memory, config, 6)
    assert same_bits(learned(again, everyone), learned(memory, everyone))


@pytest.mark.parametrize("rest", ["memory", "disk"])
def test_a_stopped_run_resumes_with_the_bits_of_its_stacks(rest: str, tmp_path: Path) -> None:
    config = Config(**SETTINGS, rest=rest)
    expected = outcome(fedal.run(Config(**SETTINGS), tmp_path / "whole").path)
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "stopped", callbacks=[StopAt(6)])
    assert outcome(fedal.resume(tmp_path / "stopped").path) == expected
    assert outcome(fedal.run(config.with_(workers=1), tmp_path / "one worker").path) == expected


def test_the_best_models_of_a_stacked_cohort_are_those_of_single_clients(tmp_path: Path) -> None:
    kept = dict(keep_best=True, own_validation=0.2, eval_clients=14, models="mlp-small", precision="fp32")
    config = Config(**{**SETTINGS, **kept, "stacked": "auto"})
    together, single = (fedal.run(each, tmp_path / str(each.stacked)) for each in (config, config.with_(stacked=False)))
    assert together.config.stacked == "auto" and outcome(together.path) == outcome(single.path)
    assert together.final["best_test_accuracy"] == single.final["best_test_accuracy"]
    for path in (single.path / "best").iterdir():
        assert path.read_bytes() == (together.path / "best" / path.name).read_bytes()


def test_an_estimate_counts_the_clients_that_rest() -> None:
    of_all = [
        estimate(Config(method="fedmd", models="mlp-small", tau=1, rounds=9, clients=8, **cohorts), trial_s=0.1).memory
        for cohorts in ({"participation": 3}, {})
    ]
    assert of_all[0]["models"] == of_all[1]["models"] and of_all[0]["optimizers"] == of_all[1]["optimizers"] > 0


def test_the_networks_of_stacks_are_those_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made once and reused; what another cohort does not need is dropped."""
    made: list[str] = []
    init = TorchLearner.__init__

    def noted(self: TorchLearner, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        made.append(named.get("owner", ""))

    config = Config(method="fedmd", clients=20, models="cnn-small", tau=1, batch_size=8, participation=10, stacked=True)
    assembly = assembled(config)
    for t in range(12):
        run_round(assembly, config, t)
    monkeypatch.setattr(TorchLearner, "__init__", noted)
    before = {name for t in range(12) for name in cohort(config, t)}
    assert before == {*config.client_names}
    for t in range(12, 15):
        assert [len(names) for names in run_round(assembly, config, t)] == [5, 5]
    assert made == []
    assert all(isinstance(player, RestingPlayer) for player in assembly.federation.players)


def test_auto_stacks_a_cohort_of_lenet5_as_it_stacks_the_roster() -> None:
    config = Config(method="fedmd", clients=4, models="lenet5", tau=1, batch_size=8, participation=2)
    models = dict.fromkeys(config.client_names, "lenet5")
    assert resolve_stacked(config, models) is True
    drawn = assemble(config, split_of(config, side=28), InOrder())
    assert [len(names) for names in run_round(drawn, config, 0)] == [2]
    assert resolve_stacked(config, {**models, "client-00": "cnn-small"}) == "auto"
    assert resolve_stacked(config.with_(stacked=False), models) is False


def test_a_model_that_counts_its_batches_is_not_stacked_in_a_cohort() -> None:
    config = Config(method="fedmd", clients=4, tau=1, batch_size=8, stacked=True)
    chains = {
        name: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 5))
        for name in config.client_names
    }
    assert len(assembled(config, custom_models=chains).federation.players) == 1
    drawn = config.with_(participation=2)
    assert run_round(assembled(drawn, custom_models=chains), drawn, 0) == []


def test_replayed_lessons_are_not_stacked_in_a_cohort() -> None:
    config = Config(method="fedmd", clients=4, participation=2, options={"replay": 1})
    models = dict.fromkeys(config.client_names, "mlp-small")
    assert resolve_stacked(config, models) is False
    with pytest.raises(ConfigError, match="stacked = true: replay keeps what each client was taught"):
        resolve_stacked(config.with_(stacked=True), models)
    assert resolve_stacked(config.with_(participation=1.0), models) == "auto"
