"""Knowledge is transferred: on digits, clients of different architectures do better together than alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedal


@pytest.fixture(scope="module")
def finals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Final rows of short default runs: 6 clients with models of three kinds, 150 iterations."""
    folder: Path = tmp_path_factory.mktemp("learns")
    settings = dict(dataset="digits", clients=6, iterations=150, eval_every=150, eval_after_local=False, seed=0)
    return {
        method: fedal.run(fedal.Config(method=method, **settings), folder / method).final
        for method in ("local", "fedmd", "fedmd-lf", "fedal")
    }


@pytest.mark.parametrize("method", ["fedmd", "fedmd-lf", "fedal"])
def test_exchange_of_outputs_beats_local_only_training(finals: dict[str, dict[str, float]], method: str) -> None:
    assert finals["local"]["test_accuracy"] > 0.5, "the floor is far above chance"
    assert finals[method]["test_accuracy"] > finals["local"]["test_accuracy"] + 0.08
    assert finals[method]["test_accuracy_min"] > finals["local"]["test_accuracy_min"] + 0.08


def test_exchange_of_outputs_brings_the_clients_together(finals: dict[str, dict[str, float]]) -> None:
    assert finals["fedal"]["test_accuracy_std"] < finals["local"]["test_accuracy_std"]
    assert finals["fedal"]["disagreement"] < 0.1
