"""Validation data: who owns them, that nobody trains on them, and what the record says about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedal
from fedal.config import Config
from fedal.data.partition import divide, draw_public
from fedal.deploy.plan import plan_federation
from fedal.deploy.settings import Deployment
from fedal.errors import ConfigError
from fedal.records.run import Run
from fedal.seeding import partition_generator
from fedal.simulate.prepare import prepare_split, restore_split

SETTINGS: dict[str, Any] = dict(clients=3, models="mlp-small", alpha=0.5, batch_size=16, public_size=300, seed=2)
SHORT: dict[str, Any] = dict(SETTINGS, rounds=2, tau=2, eval_every=2, eval_samples=50)
N_TRAIN = 1437  # of digits


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = Config(method="fedal", validation=0.2, own_validation=0.25, **SHORT)
    return fedal.run(config, tmp_path_factory.mktemp("run") / "r")


def test_a_validation_set_belongs_to_no_client_and_is_not_public() -> None:
    split = prepare_split(Config(validation=0.1, own_validation=0.2, **SETTINGS))
    assert split.public is not None and split.validation is not None
    assert len(split.validation) == round(0.1 * (N_TRAIN - 300))
    parts = [split.public, split.validation, *split.clients.values(), *split.held_out.values()]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) == N_TRAIN - split.leftovers


def test_a_validation_set_has_all_classes_in_the_proportions_of_the_data_without_the_public_set() -> None:
    split = prepare_split(Config(validation=0.1, **SETTINGS))
    labels = split.dataset.train_y
    assert split.public is not None and split.validation is not None
    rest = np.bincount(np.delete(labels, split.public), minlength=10)
    drawn = np.bincount(labels[split.validation], minlength=10)
    assert np.abs(drawn - 0.1 * rest).max() < 1 and drawn.min() > 0


def test_all_methods_and_all_tau_have_the_same_validation_set_at_one_seed() -> None:
    def drawn(**settings: Any) -> list[int]:
        found = prepare_split(Config(**{**SETTINGS, "validation": 0.1, **settings})).validation
        assert found is not None
        return found.tolist()

    one = drawn(method="fedal", tau=5)
    assert drawn(method="fedmd", tau=1) == drawn(method="local", clients=5, alpha=3.0) == one
    assert drawn(method="fedal", own_validation=0.3) == one
    assert drawn(seed=3) != one


def test_without_a_validation_set_the_split_is_that_of_runs_before_there_was_one(tmp_path: Path) -> None:
    config = Config(**SETTINGS)
    split = prepare_split(config)
    public = draw_public(N_TRAIN, 300, partition_generator(2, "public"))
    rest = np.setdiff1d(np.arange(N_TRAIN), public)
    shares = divide("dirichlet", split.dataset.train_y[rest], 3, 0.5, partition_generator(2, "partition"))
    assert [part.tolist() for part in split.clients.values()] == [rest[part].tolist() for part in shares.clients]
    split.save(tmp_path / "partition.npz")
    with np.load(tmp_path / "partition.npz") as saved:
        clients = [f"client/{name}" for name in config.client_names]
        assert saved.files == [*clients, "class_counts", "leftovers", "fingerprint", "public"]


def test_a_client_holds_out_a_stratified_share_of_its_own_samples() -> None:
    whole = prepare_split(Config(**SETTINGS))
    split = prepare_split(Config(own_validation=0.2, **SETTINGS))
    labels = split.dataset.train_y
    for client, share in whole.clients.items():
        held_out = split.held_out[client]
        assert np.array_equal(np.union1d(held_out, split.clients[client]), share)
        assert len(held_out) == round(0.2 * len(share))
        drawn, own = (np.bincount(labels[part], minlength=10) for part in (held_out, share))
        assert np.abs(drawn - 0.2 * own).max() < 1


def test_the_saved_split_is_restored_with_its_validation_data(run: Run) -> None:
    made, found = prepare_split(run.config), restore_split(run.config, run.folder.partition)
    assert made.validation is not None and np.array_equal(made.validation, found.validation)  # type: ignore[arg-type]
    assert made.held_out.keys() == found.held_out.keys() == set(run.config.client_names)
    assert all(np.array_equal(made.held_out[client], found.held_out[client]) for client in made.held_out)


def test_the_record_holds_the_accuracy_of_the_models_on_validation_data(run: Run) -> None:
    split = restore_split(run.config, run.folder.partition)

    def accuracy(client: str, indices: Any) -> float:
        with torch.no_grad():
            predicted = run.model(client)(torch.as_tensor(split.dataset.train_x[indices])).argmax(-1)
        return float((predicted.numpy() == split.dataset.train_y[indices]).mean())

    rows = {row["client"]: row for row in run.client_metrics if row["final"]}
    for client in run.config.client_names:
        assert rows[client]["validation_accuracy"] == pytest.approx(accuracy(client, split.validation))
        assert rows[client]["own_validation_accuracy"] == pytest.approx(accuracy(client, split.held_out[client]))
    for name in ("validation_accuracy", "own_validation_accuracy"):
        values = np.array([row[name] for row in rows.values()])
        assert run.final[name] == pytest.approx(values.mean())
        assert run.final[f"{name}_std"] == pytest.approx(values.std())
        assert run.final[f"{name}_min"] == values.min()
    before = [row["validation_samples"] for row in run.metrics if not row["final"]]
    assert set(before) == {50} and run.final["validation_samples"] == len(split.validation)  # type: ignore[arg-type]


def test_nobody_trains_on_validation_data(run: Run, tmp_path: Path) -> None:
    split = prepare_split(run.config)
    data = split.dataset
    x = data.train_x.copy()
    x[np.concatenate([split.validation, *split.held_out.values()])] = 1e3  # type: ignore[list-item]
    changed = fedal.run(run.config, tmp_path / "r", data=replace(data, train_x=x))
    assert changed.final["test_accuracy"] == run.final["test_accuracy"]
    for client in run.config.client_names:
        weights, others = (each.model(client).state_dict() for each in (run, changed))
        assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert changed.final["validation_accuracy"] < run.final["validation_accuracy"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(validation=0.0001), "validation = 0.0001: of 1137 training samples, 0 would be held out"),
        (dict(own_validation=0.001), 'samples of client "client-00", 0 would be held out'),
        (dict(validation=1.0), "validation"),
        (dict(validation=-0.1), "validation"),
    ],
)
def test_a_share_that_holds_out_nothing_or_everything_is_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare_split(Config(**SETTINGS, **settings))


@pytest.mark.parametrize("setting", ["validation", "own_validation"])
def test_a_server_refuses_validation_data(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} = 0.1: only a simulation holds out validation data"):
        plan_federation(Config(**SETTINGS, **{setting: 0.1}), Deployment())
