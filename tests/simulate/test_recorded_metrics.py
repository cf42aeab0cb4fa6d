"""Metrics from the run to the page: what is recorded, compared, tuned by and shown on very unequal classes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedal
from fedal.campaigns.objective import evaluate
from fedal.campaigns.tune import Search
from fedal.cli.printing import verdict
from fedal.errors import ConfigError, FedalError
from fedal.metrics import METRICS
from fedal.report.page import write_report

SETTINGS: dict[str, Any] = dict(
    clients=2, models="mlp-small", rounds=2, tau=2, batch_size=16, eval_every=2, partition="iid", own_validation=0.3,
    public_size=40, lr=1e-2, workers=1,
)  # fmt: skip


def rare(n: int = 400, share: float = 0.1) -> fedal.data.Dataset:
    """Two classes, one of them rare, that one number separates with noise."""
    generator = np.random.Generator(np.random.Philox(key=7))
    y = (generator.random(n) < share).astype(np.int64)
    x = generator.normal(size=(n, 3)).astype(np.float32)
    x[:, 0] += 2 * y
    return fedal.data.from_tensors(
        x[:280], y[:280], test_x=x[280:], test_y=y[280:], name="rare", class_names=["no", "yes"]
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedal.Run:
    return fedal.run(fedal.Config(method="fedmd", **SETTINGS), tmp_path_factory.mktemp("rare") / "run", data=rare())


def test_unequal_classes_record_all_metrics_with_pr_auc_first(run: fedal.Run) -> None:
    assert run.config.metrics[:2] == ("pr_auc", "balanced_accuracy")
    assert run.headline.key == "test_pr_auc" and "PR-AUC 0." in repr(run)
    for data in ("test", "own_validation"):
        assert {f"{data}_{name}" for name in METRICS} <= run.final.keys()
    assert run.final["test_log_loss_max"] >= run.final["test_log_loss"] >= 0 and "test_log_loss_min" not in run.final
    assert run.final["test_pr_auc_min"] <= run.final["test_pr_auc"]
    assert verdict(run.final).startswith(f"final test PR-AUC {run.final['test_pr_auc']:.4f} ±")


def test_the_scores_agree_with_the_rows(run: fedal.Run) -> None:
    finals = {row["client"]: row for row in run.client_metrics if row["final"]}
    assert run.scores["classes"] == ["no", "yes"] and run.scores["positive"] == 1
    for client, each in run.scores["clients"].items():
        for data in ("test", "own_validation"):
            found = each[data]
            assert found["values"] == {name: finals[client][f"{data}_{name}"] for name in METRICS}
            assert np.sum(found["confusion"]) == found["samples"] == sum(found["per_class"]["samples"])
            low, high = found["intervals"]["pr_auc"]
            assert low <= found["values"]["pr_auc"] <= high and low < high


def test_a_run_that_records_accuracy_alone_is_as_before(tmp_path: Path) -> None:
    equal = fedal.run(fedal.Config(method="local", **SETTINGS), tmp_path / "run", data=rare(share=0.5))
    assert equal.config.metrics == ("accuracy",) and not (equal.path / "scores.json").exists()
    assert not any("auc" in key for row in equal.metrics for key in row)
    with pytest.raises(FedalError, match="metrics=all"):
        _ = equal.scores


def test_metrics_do_not_change_the_weights(run: fedal.Run, tmp_path: Path) -> None:
    other = fedal.run(fedal.Config(method="fedmd", metrics="accuracy", **SETTINGS), tmp_path / "run", data=rare())
    for file in sorted((run.path / "models").glob("*.safetensors")):
        assert file.read_bytes() == (other.path / "models" / file.name).read_bytes()
    assert other.final["test_accuracy"] == run.final["test_accuracy"]


def test_a_comparison_by_the_headline_and_by_a_loss(tmp_path: Path) -> None:
    found = fedal.compare(["local", "fedmd"], 2, tmp_path / "cmp", SETTINGS, data=rare(), jobs=1)
    assert list(found.table()[0])[:5] == [
        "method", "test PR-AUC", "worst client", "test balanced accuracy", "own held-out PR-AUC",
    ]  # fmt: skip
    lines = list(csv.DictReader((tmp_path / "cmp/table.csv").read_text().splitlines()))
    assert float(lines[1]["test_pr_auc_mean"]) == pytest.approx(found.rows[1].mean("test_pr_auc"))
    assert found.differences()["fedmd"].by_seed[0] == pytest.approx(
        found.rows[1].runs[0].final["test_pr_auc"] - found.rows[0].runs[0].final["test_pr_auc"]
    )
    by_loss = fedal.compare(["local", "fedmd"], 2, tmp_path / "cmp", SETTINGS | {"metrics": "auto"}, data=rare(),
                            metric="own_validation_log_loss", jobs=1)  # fmt: skip
    assert list(by_loss.table()[0])[1] == "own held-out log loss"
    path, problems = write_report([tmp_path / "cmp"])
    page = path.read_text()
    assert not problems and "Reliability diagram" in page and "has the highest final test PR-AUC" in page
    assert "local, seed 0: final models; the positive class is yes" in page


def test_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='unknown metric "pr-auc"'):
        fedal.compare(["local"], 1, tmp_path / "a", SETTINGS, data=rare(), metric="pr-auc")
    with pytest.raises(ConfigError, match=r"own_validation=0\.2"):
        fedal.compare(["local"], 1, tmp_path / "a", SETTINGS | {"own_validation": 0.0}, metric="own_validation_brier")
    with pytest.raises(ConfigError, match=r"pr_auk.*Did you mean pr_auc"):
        fedal.Config(metrics="accuracy,pr_auk")
    assert not (tmp_path / "a").exists()


def test_trials_are_ranked_by_a_loss(tmp_path: Path) -> None:
    settings = {k: v for k, v in SETTINGS.items() if k not in ("own_validation", "lr", "public_size")}
    search = Search({**settings, "method": "local", "clients": 2}, tmp_path / "tune", metric="log_loss", jobs=1)
    found = search.grids([{"lr": [1e-2, 1e-6]}])
    scores = [trial.score for trial in found.ranked]
    assert scores == sorted(scores) and found.best.values == {"lr": 1e-2}
    assert "log loss of the final models" in (found.write()[0]).read_text()
    best = fedal.Run(found.best.folder)
    assert json.loads((best.path / "score.json").read_text())["metric"] == "log_loss"
    assert evaluate(best, "train", "accuracy") > 0.1
