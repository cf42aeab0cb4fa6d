"""A PyTorch, a JAX and two scikit-learn clients in one federation: better than alone, and a stop changes no bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fedal
from fedal.errors import Stopped
from fedal.learners.base import Learner
from frameworks import in_jax, regressor, trees
from observers import StopAt

MAKE = {"jax": in_jax, "regressor": regressor, "trees": trees}
CLIENTS = [{"name": "torch", "model": "mlp-small"}, *({"name": name} for name in MAKE)]


def learners(seed: int) -> dict[str, Learner]:
    return {name: make(64, 10, seed) for name, make in MAKE.items()}


def config(method: str, seed: int, iterations: int) -> fedal.Config:
    settings = dict(clients=CLIENTS, lr=3e-3, eval_every=iterations, eval_after_local=False)
    return fedal.Config(method=method, dataset="digits", seed=seed, iterations=iterations, **settings)


def accuracies(method: str, seed: int, folder: Path) -> list[float]:
    run = fedal.run(config(method, seed, 60), folder / f"{method}-{seed}", models=learners(seed))
    return [row["test_accuracy"] for row in run.client_metrics if row["final"]]


def mean_accuracies(method: str, folder: Path) -> NDArray[np.float64]:
    """The mean accuracy of each client over three seeds."""
    return np.mean([accuracies(method, seed, folder) for seed in range(3)], 0)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float64]:
    return mean_accuracies("local", tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("method", ["fedmd", "fedal"])
def test_clients_of_all_frameworks_do_better_together_than_alone(
    method: str, alone: NDArray[np.float64], tmp_path: Path
) -> None:
    together = mean_accuracies(method, tmp_path)
    assert alone.min() > 0.4, "the floor is far above chance"
    assert (together > alone + 0.05).all(), f"{alone} {together}"


def test_a_federation_of_frameworks_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = fedal.run(config("fedal", 0, 20), tmp_path / "whole", models=learners(0))
    with pytest.raises(Stopped):
        fedal.run(config("fedal", 0, 20), tmp_path / "halted", models=learners(0), callbacks=[StopAt()])
    halted = fedal.resume(tmp_path / "halted", models=learners(0))
    for client in CLIENTS:
        file = f"models/{client['name']}.safetensors"
        assert (halted.path / file).read_bytes() == (whole.path / file).read_bytes(), client
