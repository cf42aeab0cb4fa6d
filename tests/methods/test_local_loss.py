"""The option `local_loss`: its limits, and the logits of classes that a client has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedal
from fedal.config import Config
from fedal.errors import ConfigError
from splits import build_federation, differing_clients, run_rounds


def trained(**options: Any) -> Any:
    return run_rounds(build_federation("fedmd", tau=2, **options), 2)


def test_a_prior_without_strength_is_cross_entropy_bit_for_bit() -> None:
    plain = trained()
    assert differing_clients(trained(local_loss="balanced", prior_strength=0.0), plain) == []
    assert differing_clients(trained(local_loss="balanced"), plain)
    assert differing_clients(trained(local_loss="balanced", prior_strength=0.5), trained(local_loss="balanced"))


def test_a_number_of_pseudo_samples_is_refused_as_a_share() -> None:
    with pytest.raises(ConfigError, match="prior_smoothing"):
        Config(method="fedmd", options={"local_loss": "balanced", "prior_smoothing": 50})


def test_the_balanced_loss_does_not_collapse_where_clients_lack_classes(tmp_path: Path) -> None:
    """Five clients with about two classes each. With next to no smoothing, absent classes have free logits."""

    def accuracy(name: str, **options: Any) -> float:
        config = Config(
            method="fedmd", models="mlp-small", clients=5, partition="dirichlet-client-k", alpha=0.5, iterations=100,
            tau=1, eval_every=100, options=options,
        )  # fmt: skip
        run = fedal.run(config, tmp_path / name)
        assert (run.class_counts == 0).any(1).all()
        return float(run.final["test_accuracy"])

    plain = accuracy("plain")
    assert accuracy("free", local_loss="balanced", prior_smoothing=1e-6) < plain - 0.1
    assert accuracy("held", local_loss="balanced") > plain + 0.03
