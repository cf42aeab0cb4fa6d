"""The option `local_loss`: its limits, and the logits of classes that a client has never seen."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
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


def test_the_balanced_loss_collapses_with_a_tenth_of_the_default_smoothing_and_not_with_the_default(
    tmp_path: Path,
) -> None:
    """Shifted images make digits hard to learn, so that the free logits of absent classes win. A tenth is chance."""

    def accuracy(name: str, **options: Any) -> float:
        """The mean over four seeds."""
        found = []
        for seed in range(4):
            config = Config(
                method="fedmd", models="mlp-small", clients=10, partition="dirichlet-client-k", alpha=1.0, lr=0.005,
                private_augment="shift", iterations=300, tau=1, eval_every=300, eval_after_local=False, seed=seed,
                options=options,
            )  # fmt: skip
            run = fedal.run(config, tmp_path / f"{name}-{seed}")
            assert (run.class_counts == 0).any(1).all()
            found.append(run.final["test_accuracy"])
        return fmean(found)

    assert accuracy("free", local_loss="balanced", prior_smoothing=0.003) < 0.2
    assert accuracy("held", local_loss="balanced") > accuracy("plain") + 0.03
