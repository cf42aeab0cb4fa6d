"""The run folder: the keys of every row and their meaning, exact bytes, and models saved without loss."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import fedal
from fedal.config import Config, load_config
from fedal.data import load as load_data
from fedal.data.strata import stratified_subset
from fedal.errors import FedalError
from fedal.records.run import read_rows
from observers import Notes, StopAt

N, TAU, B, K, ROUNDS = 3, 2, 16, 10, 7
CLIENTS = [{"name": "north", "model": "mlp-small"}, {"name": "south", "model": "cnn-small-bn"}, {"model": "cnn-small"}]
NAMES = ["north", "south", "client-02"]
SETTINGS = dict(clients=CLIENTS, rounds=ROUNDS, tau=TAU, batch_size=B, eval_every=5, eval_samples=100, seed=4)

ALWAYS = {
    "round",
    "iteration",
    "phase",
    "test_accuracy",
    "test_accuracy_std",
    "test_accuracy_min",
    "test_samples",
    "final",
    "up_bytes",
    "down_bytes",
    "participants",
    "seconds",
}
OF_METHOD = {
    "local": set(),
    "fedmd": {"disagreement"},
    "fedmd-lf": {"disagreement"},
    "fedal": {"disagreement", "discriminator_accuracy", "adversarial_grad_norm"},
}
DOWN = {"local": 0, "fedmd": 4, "fedmd-lf": 4, "fedal": 8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedal.Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: fedal.run(Config(method=name, **SETTINGS), folder / name) for name in OF_METHOD}


@pytest.fixture(scope="module")
def run(runs: dict[str, fedal.Run]) -> fedal.Run:
    return runs["fedal"]


@pytest.mark.parametrize("method", OF_METHOD)
def test_every_row_has_exactly_the_promised_keys(runs: dict[str, fedal.Run], method: str) -> None:
    start, *rows = runs[method].metrics
    assert set(start) == ALWAYS, "before the first round nothing was exchanged"
    for row in rows:
        assert set(row) == ALWAYS | OF_METHOD[method]


@pytest.mark.parametrize("method", OF_METHOD)
def test_evaluations_fall_on_round_ends_and_the_last_row_is_final(runs: dict[str, fedal.Run], method: str) -> None:
    rows = runs[method].metrics
    # the untrained models, then eval_every = 5 iterations, tau = 2: due at 5 and 10, seen at the ends of rounds 3 and 5
    places = [(0, 0), (3, 6), (3, 6), (5, 10), (5, 10), (7, 14)]
    assert [(row["round"], row["iteration"]) for row in rows] == places
    assert [row["phase"] for row in rows] == ["after_global", *["after_local", "after_global"] * 2, "after_global"]
    assert [row["final"] for row in rows] == [False] * 5 + [True]
    assert [row["test_samples"] for row in rows] == [100] * 5 + [360]
    assert runs[method].final == rows[-1]


@pytest.mark.parametrize("method", OF_METHOD)
def test_bytes_are_those_of_algorithm_1_and_cumulative(runs: dict[str, fedal.Run], method: str) -> None:
    for row in runs[method].metrics:
        exchanged = 0 if method == "local" else row["iteration"] * N * K * B
        assert row["up_bytes"] == 4 * exchanged
        assert row["down_bytes"] == DOWN[method] * exchanged
        assert row["participants"] == N


def test_the_rows_of_the_clients_agree_with_those_of_the_federation(run: fedal.Run) -> None:
    rows = run.client_metrics
    keys = {"round", "iteration", "phase", "client", "model", "private_samples", "test_accuracy", "test_samples"}
    keys |= {"final", "participated", "up_bytes", "down_bytes"}
    assert all(set(row) == keys for row in rows)
    assert [row["client"] for row in rows] == NAMES * 6, "in roster order, whatever the order of arrival"
    for index, whole in enumerate(run.metrics):
        mine = rows[N * index : N * (index + 1)]
        for key in ("round", "iteration", "phase", "final", "test_samples"):
            assert {row[key] for row in mine} == {whole[key]}
        accuracies = np.array([row["test_accuracy"] for row in mine])
        assert whole["test_accuracy"] == pytest.approx(accuracies.mean(), abs=1e-12)
        assert whole["test_accuracy_std"] == pytest.approx(accuracies.std(), abs=1e-12)
        assert whole["test_accuracy_min"] == accuracies.min()
        for key in ("up_bytes", "down_bytes"):
            assert sum(row[key] for row in mine) == whole[key]
    assert {row["client"]: row["model"] for row in rows} == dict(
        zip(NAMES, ["mlp-small", "cnn-small-bn", "cnn-small"], strict=True)
    )
    assert all(row["participated"] is True for row in rows)


def test_iteration_0_is_the_accuracy_of_the_untrained_models(run: fedal.Run, runs: dict[str, fedal.Run]) -> None:
    """Methods share the models and the test samples of a seed, so all of their curves begin at one point."""
    starts = [[row for row in each.client_metrics if row["iteration"] == 0] for each in runs.values()]
    assert all(
        [row["test_accuracy"] for row in start] == [row["test_accuracy"] for row in starts[0]] for start in starts
    )
    assert abs(run.metrics[0]["test_accuracy"] - 1 / K) < 0.1, "chance"


def test_after_local_is_measured_between_training_and_transfer(runs: dict[str, fedal.Run], tmp_path: Path) -> None:
    apart = [row["test_accuracy"] for row in runs["fedal"].client_metrics if row["round"] == 3]
    assert apart[:N] != apart[N:], "transfer changed nothing?"
    alone = [row["test_accuracy"] for row in runs["local"].client_metrics if row["round"] == 3]
    assert alone[:N] == alone[N:], "without transfer both phases are the same models"
    quiet = fedal.run(Config(method="fedal", eval_after_local=False, **SETTINGS), tmp_path / "quiet")
    expected = [row for row in runs["fedal"].metrics if row["phase"] == "after_global"]
    found = quiet.metrics
    for row in expected + found:
        row.pop("seconds")
    assert found == expected, "an evaluation must not change the result"


def test_the_measurements_of_the_exchange_are_plausible(run: fedal.Run) -> None:
    for row in run.metrics[1:]:  # the first row precedes the first exchange
        assert 0 <= row["disagreement"] <= np.log(K)
        assert 0 <= row["discriminator_accuracy"] <= 1
        assert row["adversarial_grad_norm"] > 0
        assert 0 <= row["test_accuracy_min"] <= row["test_accuracy"] <= 1
    assert [row["seconds"] for row in run.metrics] == sorted(row["seconds"] for row in run.metrics)


def test_a_loaded_model_reproduces_its_final_accuracy(run: fedal.Run) -> None:
    data = load_data("digits")
    opened = fedal.load_run(run.path)
    recorded = {row["client"]: row["test_accuracy"] for row in opened.client_metrics if row["final"]}
    assert set(recorded) == set(NAMES) == set(opened.client_models)
    for name, accuracy in recorded.items():
        model = opened.model(name)
        assert not model.training
        with torch.no_grad():
            answers = model(torch.as_tensor(data.test_x)).argmax(-1).numpy()
        assert float((answers == data.test_y).mean()) == accuracy


def test_a_model_in_double_precision_is_loaded_unrounded(tmp_path: Path) -> None:
    run = fedal.run(Config(method="fedmd", precision="fp64", **{**SETTINGS, "rounds": 1}), tmp_path / "double")
    data = load_data("digits")
    for row in run.client_metrics[-N:]:
        with torch.no_grad():
            answers = run.model(row["client"])(torch.as_tensor(data.test_x).double())
        assert answers.dtype == torch.float64
        assert float((answers.argmax(-1).numpy() == data.test_y).mean()) == row["test_accuracy"]
    weights = run.model("north").state_dict()
    assert any(not torch.equal(value, value.float().double()) for value in weights.values())


def test_weights_of_another_model_are_explained(run: fedal.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    models = tmp_path / "run" / "models"
    shutil.copy(models / "south.safetensors", models / "north.safetensors")
    with pytest.raises(FedalError, match=r"the saved weights do not fit SmallMLP .*Another version"):
        fedal.load_run(tmp_path / "run").model("north")


def test_a_missing_model_is_explained(run: fedal.Run, tmp_path: Path) -> None:
    with pytest.raises(FedalError, match=r'no client "east"\. It has: north, south, client-02'):
        run.model("east")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_bytes((run.path / "config.toml").read_bytes())
    (tmp_path / "begun" / "environment.json").write_bytes((run.path / "environment.json").read_bytes())
    begun = fedal.load_run(tmp_path / "begun")
    assert not begun.is_complete and begun.metrics == []
    with pytest.raises(FedalError, match="fedal resume"):
        begun.model("north")
    with pytest.raises(FedalError, match="fedal resume"):
        _ = begun.final


def test_the_partition_is_saved_with_its_class_table(run: fedal.Run) -> None:
    data = load_data("digits")
    with np.load(run.path / "partition.npz", allow_pickle=False) as saved:
        parts = [saved[f"client/{name}"] for name in NAMES]
        public, table, leftovers = saved["public"], saved["class_counts"], int(saved["leftovers"])
    assert len(public) == 300 and leftovers == 0
    together = np.concatenate([*parts, public])
    assert len(np.unique(together)) == len(together) == len(data.train_y) == 1437
    expected = [[Counter(data.train_y[part].tolist())[k] for k in range(K)] for part in parts]
    assert table.tolist() == expected
    assert [row["private_samples"] for row in run.client_metrics[:N]] == [len(part) for part in parts]


def test_a_run_says_how_skewed_its_data_are(run: fedal.Run) -> None:
    assert run.class_counts.shape == (N, K) and run.class_counts.sum() == 1437 - 300
    shares = run.class_counts / run.class_counts.sum(axis=1, keepdims=True)
    entropies = [-sum(share * np.log(share) for share in client if share > 0) for client in shares]
    assert run.effective_classes == pytest.approx(np.exp(entropies).mean())
    assert run.unassigned == 0
    summary = json.loads((run.path / "summary.json").read_text())
    totals = run.class_counts.sum(axis=0)
    rarest = {"label": totals.argmin(), "samples": totals.min(), "owned": 1137}
    rarest["owners"] = np.count_nonzero(run.class_counts[:, totals.argmin()])
    assert summary["data"] == {"effective_classes": run.effective_classes, "unassigned": 0, "rarest_class": rarest}


def test_the_subset_for_evaluation_is_stratified_and_fixed_by_the_seed() -> None:
    labels = load_data("digits").test_y
    subset = stratified_subset(labels, 100, seed=4)
    assert np.array_equal(subset, stratified_subset(labels, 100, seed=4))
    assert not np.array_equal(subset, stratified_subset(labels, 100, seed=5))
    share = np.bincount(labels[subset], minlength=K) / 100 - np.bincount(labels, minlength=K) / len(labels)
    assert np.abs(share).max() < 0.011


def test_the_environment_records_what_determines_bits_besides_the_config(run: fedal.Run) -> None:
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["fedal"] == fedal.__version__
    assert environment["clients"] == dict(zip(NAMES, ["mlp-small", "cnn-small-bn", "cnn-small"], strict=True))
    assert environment["input_shape"] == [1, 8, 8] and environment["n_classes"] == K
    assert {"python", "numpy", "machine", "cpu_capability", "cores", "data"} <= environment.keys()


def test_the_config_in_the_folder_is_resolved(run: fedal.Run) -> None:
    config = load_config(run.path / "config.toml", {})
    assert (config.partition, config.public_size, config.total_rounds) == ("dirichlet", 300, ROUNDS)
    assert config.client_names == tuple(NAMES)
    assert config.model_dump() == run.config.model_dump()


def test_an_automatic_evaluation_interval_is_fixed_at_the_start_and_kept_by_a_longer_run(tmp_path: Path) -> None:
    config = Config(method="local", clients=2, models="mlp-small", iterations=40, tau=1, batch_size=8, eval_samples=20)
    run = fedal.run(config, tmp_path / "run")
    assert "eval_every = 2\n" in (run.path / "config.toml").read_text()
    longer = fedal.resume(run.path, iterations=60)
    assert longer.config.eval_every == 2
    ends = [row["iteration"] for row in longer.metrics if row["phase"] == "after_global" and not row["final"]]
    assert ends == list(range(0, 61, 2))


def test_the_folder_holds_the_documented_files_and_no_temporary_ones(run: fedal.Run) -> None:
    names = {path.name for path in run.path.iterdir()}
    promised = {"config.toml", "metrics.jsonl", "clients.jsonl", "partition.npz", "checkpoints", "models"}
    assert promised | {"environment.json", "summary.json", "run.lock"} == names
    weights = {f"{name}.safetensors" for name in NAMES}
    assert {path.name for path in (run.path / "models").iterdir()} == weights | {"models.json"}
    assert {path.suffix for path in (run.path / "checkpoints").iterdir()} == {".json", ".tensors"}
    assert len(list((run.path / "checkpoints").iterdir())) <= 4


def test_a_torn_last_line_is_not_a_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert read_rows(path) == [{"round": 1}, {"round": 2}]
    assert read_rows(tmp_path / "nothing") == []


def test_another_version_of_torch_is_warned_about_on_resume(run: fedal.Run, tmp_path: Path) -> None:
    half = tmp_path / "half"
    with pytest.raises(FedalError, match="stopped after iteration 2"):
        fedal.run(Config(method="fedal", **SETTINGS), half, callbacks=[StopAt()])
    environment = json.loads((half / "environment.json").read_text())
    (half / "environment.json").write_text(json.dumps({**environment, "torch": "0.1"}))
    notes = Notes()
    fedal.resume(half, callbacks=[notes])
    assert notes.of("warning") == [
        f"torch was 0.1, is now {torch.__version__}: the result may not be bit-identical to an uninterrupted run."
    ]


def test_a_run_folder_with_only_its_config_starts_at_round_0(run: fedal.Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((run.path / "config.toml").read_bytes())
    again = fedal.resume(tmp_path)
    for name in NAMES:
        file = f"models/{name}.safetensors"
        assert (again.path / file).read_bytes() == (run.path / file).read_bytes()


def test_the_final_row_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """The last round is not evaluated here; its values in the final row must survive a restart."""
    run = fedal.run(Config(method="fedal", **SETTINGS), tmp_path / "a")
    before = run.final
    run.folder.summary.unlink()
    after = fedal.resume(run.path).final
    assert {**before, "seconds": 0} == {**after, "seconds": 0}
    assert "disagreement" in after
