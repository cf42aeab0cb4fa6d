"""Bias, ensemble and gap: by hand, and in the record, the analysis and the final row of a run."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest
import torch

import fedal
from fedal.analysis.analyse import analyse
from fedal.config import Config
from fedal.theory.bottlenecks import bottlenecks


def test_the_three_numbers_of_a_hand_case() -> None:
    """Two clients, four samples, two classes with frequencies 1/2: one client always prefers class 0 with odds 3."""
    labels = torch.tensor([0, 0, 1, 1])
    biased = torch.tensor([math.log(3.0), 0.0]).expand(4, 2)
    expert = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    found = bottlenecks(torch.stack([biased, expert]), labels)
    assert found.bias == pytest.approx((0.25, 0.0), abs=1e-7)
    assert found.ensemble == 1.0  # log 3 < 2, so the mean follows the expert
    assert found.gap == 1.0 - (0.5 + 1.0) / 2


def test_equal_clients_have_no_gap() -> None:
    outputs = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).expand(3, -1, -1)
    assert bottlenecks(outputs, torch.arange(20) % 5).gap == pytest.approx(0.0, abs=1e-12)


def test_a_run_records_them_and_an_analysis_finds_the_same(tmp_path: Path) -> None:
    settings = dict(method="fedmd", clients=3, models="mlp-small", iterations=4, tau=2, eval_every=2, batch_size=8)
    watched = fedal.run(Config(**settings, validation=0.1, instruments="bottlenecks"), tmp_path / "watched")
    plain = fedal.run(Config(**settings, validation=0.1), tmp_path / "plain")
    for key, value in plain.final.items():
        assert key == "seconds" or watched.final[key] == value, "an instrument changes nothing"
    final = watched.final
    assert final["test_gap"] == pytest.approx(final["test_ensemble_accuracy"] - final["test_accuracy"], abs=1e-12)
    own = [row["test_bias"] for row in watched.client_metrics if row["final"]]
    assert final["test_bias"] == pytest.approx(fmean(own)) and 0 < min(own) < 1
    assert all("validation_bias" in row for row in watched.metrics if row["phase"] == "after_global" and row["round"])
    found = analyse(watched, reference_steps=0).bottlenecks
    assert found == pytest.approx({key: final[key] for key in found}, abs=1e-12)
    assert len(found) == 6


def test_they_are_of_the_clients_that_are_evaluated(tmp_path: Path) -> None:
    """Six clients, two of which take part in each round; the accuracy is the mean over three."""
    config = Config(
        method="fedlift", clients=6, models="mlp-small", participation=2, eval_clients=3, iterations=4, eval_every=2,
        batch_size=8, validation=0.1, instruments="bottlenecks",
    )  # fmt: skip
    run = fedal.run(config, tmp_path / "run")
    measured = [row for row in run.metrics if "test_gap" in row]
    assert len(measured) == 3 and measured[-1]["final"]
    for row in measured:
        for data in ("test", "validation"):
            apart = row[f"{data}_ensemble_accuracy"] - row[f"{data}_accuracy"]
            assert row[f"{data}_gap"] == pytest.approx(apart, abs=1e-12)
    own = [row["test_bias"] for row in run.client_metrics if row["final"]]
    assert len(own) == 3 and run.final["test_bias"] == pytest.approx(fmean(own))
    found = analyse(run, reference_steps=0).bottlenecks
    assert found == pytest.approx({key: run.final[key] for key in found}, abs=1e-12)
