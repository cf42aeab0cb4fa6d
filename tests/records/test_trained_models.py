"""Trained models: their description, loading, predictions of a file, exports and the card."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedal
from fedal.cli.app import app
from fedal.data.drafting import draft_schema
from fedal.errors import CheckpointError, ConfigError
from fedal.learners.tree_learner import TreeLearner
from fedal.records.exporting import export
from fedal.records.loaded_model import LoadedModel, load_model
from fedal.records.model_files import read_model_file
from optional import needs

TABLE: dict[str, Any] = dict(
    method="fedmd", rounds=3, tau=2, batch_size=8, eval_every=2, public_size=30, metrics="all", workers=1,
    own_validation=0.2, partition="iid",
)  # fmt: skip


def people(n: int = 240, seed: int = 0) -> list[list[str]]:
    generator = np.random.Generator(np.random.Philox(key=seed))
    age, city = generator.integers(18, 80, n), generator.choice(["north", "south"], n)
    late = (age < 40) & (city == "north")
    return [[str(a), c, "yes" if x else "no"] for a, c, x in zip(age, city, late, strict=True)]


def write(path: Path, rows: list[list[str]], labelled: bool = True) -> Path:
    heads = ["age", "city", "late"] if labelled else ["age", "city"]
    lines = [",".join(row[: len(heads)]) for row in rows]
    path.write_text("\n".join([",".join(heads), *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedal.Run:
    """A federation with a schema, a net, two boosters and a logistic regression."""
    needs("xgboost", "xgboost")
    needs("lightgbm", "lightgbm")
    folder = tmp_path_factory.mktemp("people")
    schema = draft_schema(
        write(folder / "public.csv", people(60, 9), labelled=False), classes=["no", "yes"], label="late", positive="yes"
    )
    data = fedal.data.read_data(write(folder / "people.csv", people()), schema)
    kinds = {"net": "mlp-small", "xgb": "xgboost", "lgb": "lightgbm", "log": "logistic"}
    clients = [{"name": name, "model": model} for name, model in kinds.items()]
    return fedal.run(fedal.Config(clients=clients, **TABLE), folder / "run", data=data)


@pytest.mark.parametrize("client", ["net", "xgb", "lgb", "log"])
def test_a_loaded_model_predicts_what_the_run_measured(run: fedal.Run, client: str) -> None:
    loaded = fedal.load_model(run.path / f"models/{client}.safetensors")
    assert loaded.classes == ("no", "yes") and loaded.about.positive == "yes"
    schema = loaded.about.data_schema
    assert schema is not None
    data = fedal.data.read_data(run.path.parent / "people.csv", schema)
    p = loaded.predict(data.test_x)
    assert np.allclose(p.sum(1), 1)
    described = loaded.about.models[client]
    assert (p.argmax(1) == data.test_y).mean() == pytest.approx(described.metrics["test_accuracy"])
    final = next(row for row in run.client_metrics if row["final"] and row["client"] == client)
    assert described.metrics["own_validation_pr_auc"] == final["own_validation_pr_auc"]
    assert described.private_samples == final["private_samples"] and described.up_bytes == final["up_bytes"]
    assert "test_accuracy" in described.before and "test_samples" not in described.metrics


def test_predict_writes_a_table(run: fedal.Run, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", people(25, 4), labelled=False)
    model, out = run.path / "models/net.safetensors", tmp_path / "answers.csv"
    ended = CliRunner().invoke(app, ["predict", str(model), str(new), "--out", str(out)])
    assert ended.exit_code == 0 and "25 predictions of net" in ended.stdout
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["row"] for row in rows] == [str(n) for n in range(1, 26)]
    for row in rows:
        assert float(row["p(no)"]) + float(row["p(yes)"]) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == ("yes" if float(row["p(yes)"]) > 0.5 else "no")


def test_a_model_card_has_sizes_metrics_and_what_was_revealed(run: fedal.Run) -> None:
    ended = CliRunner().invoke(app, ["card", str(run.path / "models/xgb.safetensors")])
    card, about = ended.stdout, run.final
    assert "# Model of xgb" in card and "positive: yes" in card and f"{about['iteration']} iterations" in card
    final = next(row for row in run.client_metrics if row["final"] and row["client"] == "xgb")
    first = next(row for row in run.client_metrics if row["iteration"] == 0 and row["client"] == "xgb")
    assert f"| test PR-AUC | {first['test_pr_auc']:.4f} | {final['test_pr_auc']:.4f} |" in card
    assert f"{final['private_samples']} samples" in card
    assert "The owner sent outputs on public data, as Outputs (" in card
    assert "It received outputs on public data. Outputs leak" in card


def test_boosters_are_exported_in_their_own_format(run: fedal.Run, tmp_path: Path) -> None:
    xgboost, lightgbm = needs("xgboost", "xgboost"), needs("lightgbm", "lightgbm")
    x = np.random.Generator(np.random.Philox(key=1)).normal(size=(5, 4)).astype(np.float32)
    for client, suffix in (("xgb", ".ubj"), ("lgb", ".txt")):
        loaded, path = load_model(run.path / f"models/{client}.safetensors"), tmp_path / f"{client}{suffix}"
        assert "Booster" in export(loaded, path)
        if client == "xgb":
            found = xgboost.Booster(model_file=str(path)).predict(xgboost.DMatrix(x))
        else:
            found = lightgbm.Booster(model_file=str(path)).predict(x)
        np.testing.assert_allclose(found, loaded.predict(x)[:, 1], rtol=1e-4)
        with pytest.raises(ConfigError, match=rf"cannot be written as \.onnx\. Try a name that ends with \{suffix}"):
            export(loaded, tmp_path / "model.onnx")


def test_what_no_format_holds_is_refused_with_another_way(run: fedal.Run, tmp_path: Path) -> None:
    logistic, net = (load_model(run.path / f"models/{name}.safetensors") for name in ("log", "net"))
    with pytest.raises(ConfigError, match=r"For a classifier of scikit-learn, .*log\.safetensors\S*\.classifier\(\)"):
        export(logistic, tmp_path / "log.onnx")
    with pytest.raises(ConfigError, match=r"cannot be written as \.ubj\. Try a name that ends with \.onnx"):
        export(net, tmp_path / "net.ubj")
    trees = LoadedModel(net.about, "net", TreeLearner(n_features=4, n_classes=2))
    with pytest.raises(ConfigError, match=r"No other library has its format\. Use fedal predict"):
        export(trees, tmp_path / "net.ubj")


def test_a_net_is_exported_to_onnx_with_its_description(run: fedal.Run, tmp_path: Path) -> None:
    onnxruntime, onnx = needs("onnxruntime", "onnx"), needs("onnx", "onnx")
    needs("onnxscript", "onnx")
    loaded, path = load_model(run.path / "models/net.safetensors"), tmp_path / "net.onnx"
    assert "differs from PyTorch" in export(loaded, path)
    x = np.random.Generator(np.random.Philox(key=1)).normal(size=(3, 4)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(str(path)).run(["logits"], {"x": x})
    np.testing.assert_allclose(found, loaded.logits(x), atol=1e-5)
    texts = {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}
    assert json.loads(texts["classes"]) == ["no", "yes"] and "data_schema" in json.loads(texts["fedal"])


def test_what_is_missing_is_named(run: fedal.Run, tmp_path: Path) -> None:
    source = run.path / "models"
    with pytest.raises(ConfigError, match="no such file"):
        load_model(source / "nobody.safetensors")
    alone = shutil.copy(source / "net.safetensors", tmp_path / "net.safetensors")
    with pytest.raises(ConfigError, match=r"neither net\.json nor models\.json"):
        load_model(alone)
    shutil.copy(source / "models.json", tmp_path / "models.json")
    assert load_model(alone).name == "net"
    renamed = shutil.copy(alone, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match='does not describe a model "other"'):
        read_model_file(Path(renamed))
    shutil.copy(source / "log.safetensors", tmp_path / "net.safetensors")
    with pytest.raises(CheckpointError, match="cannot be loaded into mlp-small"):
        load_model(alone)
    (tmp_path / "models.json").write_text('{"format": "other"}')
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_model(alone)


def test_models_passed_in_python_are_passed_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # noqa: E731
    settings: dict[str, Any] = dict(method="local", clients=1, rounds=1, tau=1, batch_size=8)
    run = fedal.run(fedal.Config(**settings), tmp_path / "run", models={"client-00": make()})
    path = run.path / "models/client-00.safetensors"
    with pytest.raises(ConfigError, match="passed in Python as <Sequential>"):
        load_model(path)
    loaded = load_model(path, model=make())
    x = np.ones((2, 1, 8, 8), np.float32)
    np.testing.assert_allclose(loaded.logits(x), run.model("client-00")(torch.as_tensor(x)).detach(), rtol=1e-6)
    with pytest.raises(ConfigError, match="this model takes"):
        loaded.predict(np.ones((2, 9), np.float32))
    with pytest.raises(ConfigError, match="trained without a schema"):
        loaded.read(tmp_path / "new.csv")
