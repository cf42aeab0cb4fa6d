"""Each client brings its own data: from files or Python alike, also if it lacks columns or has never seen a class."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedal
from commands import fedal as command
from fedal.analysis.restored import restored
from fedal.config import Config
from fedal.data import read_data, read_public
from fedal.data.lacking import Imputed
from fedal.data.schema import load_schema
from fedal.data.streams import Samples
from fedal.engine.threads import thread_workers
from fedal.errors import ConfigError, DataError
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import prepare_split, restore_split
from observers import StopAt
from optional import needs
from site_tables import SIZES, write_sites

SHORT: dict[str, Any] = dict(method="fedmd", rounds=2, tau=2, eval_every=2, metrics=["accuracy", "brier"])


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return SHORT | write_sites(tmp_path)


def weights(run: fedal.Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run.path / "models").iterdir())}


def test_each_client_has_its_own_samples_and_the_record_says_so(tmp_path: Path, settings: dict[str, Any]) -> None:
    warned: list[str] = []

    class Ears(fedal.Callback):
        def on_warning(self, run: Any, text: str) -> None:
            warned.append(text)

    run = fedal.run(Config(**settings), tmp_path / "run", callbacks=[Ears()])
    assert run.config.dataset == "own" and run.config.partition == "by-owner"
    split = prepare_split(run.config)
    schema = load_schema(settings["schema_file"])
    for client, n in SIZES.items():
        mine = read_data(tmp_path / f"{client}.csv", schema)
        assert (split.dataset.train_x[split.clients[client]] == mine.train_x).all()
        assert (split.dataset.test_x[split.own_tests[client]] == mine.test_x).all()
        assert len(mine.train_y) + len(mine.test_y) == n
    final = {row["client"]: row for row in run.client_metrics if row["final"]}
    assert {client: row["private_samples"] for client, row in final.items()} == {
        client: len(part) for client, part in split.clients.items()
    }
    for row in final.values():
        assert {"test_accuracy", "test_brier", "own_test_accuracy", "own_test_brier"} <= row.keys()
    assert any('south.csv: it lacks "income": imputed in its private and in its public inputs' in t for t in warned)
    assert any("east.csv: no row is of class no" in text for text in warned)


def _watched(call: Any, inputs: list[torch.Tensor], x: torch.Tensor, *more: Any) -> Any:
    inputs.append(x)
    return call(x, *more)


def test_a_client_without_a_column_sees_it_imputed_in_every_input(settings: dict[str, Any]) -> None:
    split = prepare_split(Config(**settings))
    imputed = split.imputed("south")
    assert imputed is not None and split.imputed("north") is None
    assert imputed.columns.tolist() == [split.dataset.sample_shape[0] - 1]
    value = torch.as_tensor(imputed.values)
    with thread_workers(1) as workers:
        assembly = assemble(Config(**settings, stacked=False), split, workers)
        inputs: dict[str, list[torch.Tensor]] = {client: [] for client in SIZES}
        for client, learner in assembly.learners.items():
            for verb in ("logits", "predict"):
                setattr(learner, verb, partial(_watched, getattr(learner, verb), inputs[client]))
        assembly.federation.run_round(0)
        assembly.view.evaluate_all(whole=True)
        assembly.view.test_accuracy("south")
    column = {client: torch.cat([x[:, -1] for x in seen]) for client, seen in inputs.items()}
    assert (column["south"] == value).all() and len(column["south"]) > 60
    assert (column["north"] != value).any()


def test_a_model_that_lacks_a_column_never_sees_it_in_predictions_either(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = fedal.run(Config(**settings), tmp_path / "run")
    model, other = (fedal.load_model(run.path / f"models/{client}.safetensors") for client in ("south", "north"))
    assert model.lacking == ("income",) and other.lacking == ()
    everything = read_public(settings["public"], load_schema(settings["schema_file"]))
    imputed = prepare_split(run.config).imputed("south")
    assert imputed is not None
    expected = everything.copy()
    expected[:, imputed.columns] = imputed.values
    assert (model.read(settings["public"]) == expected).all() and (expected != everything).any()
    assert (other.read(settings["public"]) == everything).all()
    table = tmp_path / "south-predictions.csv"
    answer = command("predict", run.path / "models/south.safetensors", settings["public"], "--out", table)
    assert "south was trained without 1 columns: they are imputed here too" in answer.out
    found = np.loadtxt(table, delimiter=",", skiprows=1, usecols=(2, 3))
    assert np.allclose(found, model.predict(expected), atol=1e-6)
    card = command("card", run.path / "models/south.safetensors").out
    assert "owner; 1 columns of the schema are lacking, and imputed" in card


def test_a_client_that_lacks_columns_is_in_no_stack(tmp_path: Path, settings: dict[str, Any]) -> None:
    split = prepare_split(Config(**settings))
    with thread_workers(1) as workers:
        players = assemble(Config(**settings), split, workers).federation.players
    assert sorted(player.names for player in players) == [("north", "east"), ("south",)]
    both = [weights(fedal.run(Config(**settings, stacked=s), tmp_path / str(s))) for s in ("auto", False)]
    assert both[0] == both[1]


def test_imputed_samples_share_their_memory_and_leave_the_original_alone() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    samples = Samples(x, torch.float32)
    seen = samples.with_imputed(Imputed(np.array([0, 2]), np.array([-1, -2], np.float32)))
    assert seen.take(torch.tensor([1, 3])).tolist() == [[-1, 4, -2], [-1, 10, -2]]
    assert samples.take(torch.tensor([1])).tolist() == [[3, 4, 5]] and samples.with_imputed(None) is samples


def test_data_in_python_give_the_same_bits_as_files_and_as_frames(tmp_path: Path, settings: dict[str, Any]) -> None:
    pd = needs("pandas", "pandas")
    from_files = weights(fedal.run(Config(**settings), tmp_path / "files"))
    clients = [{"name": client} for client in SIZES]
    given = {k: v for k, v in settings.items() if k not in ("public", "clients")} | {"clients": clients}
    frames = {client: pd.read_csv(tmp_path / f"{client}.csv") for client in reversed(SIZES)}
    public = pd.read_csv(tmp_path / "public.csv")
    run = fedal.run(Config(**given), tmp_path / "frames", data=frames, public=public)
    assert weights(run) == from_files and run.config.partition == "by-owner" and run.config.data_in_python
    schema = load_schema(given.pop("schema_file"))
    parts = {client: read_data(frame, schema) for client, frame in frames.items()}
    inputs = read_public(public, schema)
    with pytest.raises(fedal.errors.Stopped):
        fedal.run(Config(**given), tmp_path / "parts", data=parts, public=inputs, callbacks=[StopAt(1)])
    assert weights(fedal.resume(tmp_path / "parts", data=parts, public=inputs)) == from_files
    compared = fedal.compare(["fedmd"], 1, tmp_path / "compared", given, data=parts, public=public, jobs=1)
    assert weights(compared.rows[0].runs[0]) == from_files, "a public frame is read with the schema of the data"
    fedal.compare(["fedmd"], 1, tmp_path / "compared", given, data=parts, public=inputs, jobs=1)


def test_a_run_on_files_of_clients_resumes_and_compares(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = weights(fedal.run(Config(**settings), tmp_path / "whole"))
    with pytest.raises(fedal.errors.Stopped):
        fedal.run(Config(**settings), tmp_path / "run", callbacks=[StopAt(1)])
    assert weights(fedal.resume(tmp_path / "run")) == whole
    shared = {key: value for key, value in settings.items() if key != "method"}
    found = fedal.compare(["local", "fedmd"], 1, tmp_path / "c", shared, jobs=1)
    assert weights(found.rows[1].runs[0]) == whole
    again = fedal.compare(["local", "fedmd"], 1, tmp_path / "c", shared, metric="own_test_brier", jobs=1)  # no new runs
    own = [row["own_test_brier"] for row in again.rows[1].runs[0].client_metrics if row["final"]]
    assert again.rows[1].mean("own_test_brier") == pytest.approx(sum(own) / 3) and "local test Brier" in repr(again)
    assert "local test accuracy" in found.beside
    path = tmp_path / "north.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("clerk", "nurse"), encoding="utf-8")
    with pytest.raises(fedal.errors.CheckpointError, match="made for other training data"):
        fedal.resume(tmp_path / "run", iterations=20)


def test_one_table_is_divided_like_any_dataset(tmp_path: Path, settings: dict[str, Any]) -> None:
    one = settings | {"clients": 2, "data": str(tmp_path / "north.csv"), "partition": "iid", "public_size": 10}
    del one["public"]
    run = fedal.run(Config(**one), tmp_path / "run")
    assert run.config.partition == "iid" and run.config.public_size == 10
    less = Config(**one | {"data": str(tmp_path / "south.csv"), "public": settings["public"], "public_size": None})
    run = fedal.run(less, tmp_path / "less")
    for split in (prepare_split(less), restore_split(run.config, run.path / "partition.npz")):
        assert len(np.unique(split.public_x[:, -1])) == len(np.unique(split.dataset.train_x[:, -1])) == 1, "no income"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(public=None), "public: the clients have their own data, so the public set must come from elsewhere"),
        (dict(partition="iid"), "partition = iid: the clients have their own data, which is not divided"),
        (dict(validation=0.2), r"validation = 0\.2: the clients have their own data.* Use own_validation"),
        (dict(data="x.csv"), r"data = x\.csv: the clients have their own data"),
        (dict(schema_file=None), r"north\.csv: needs a schema"),
        (dict(min_samples=20), 'client "east" has 10 samples to train on, fewer than min_samples = 20'),
        (dict(instruments="zeta"), "instruments: not available where clients lack columns"),
    ],
)
def test_what_contradicts_data_of_their_own_is_refused(
    settings: dict[str, Any], change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        fedal.run(Config(**settings | change), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is half written"


def test_some_clients_without_data_or_other_names_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    clients = [*settings["clients"], {"name": "west"}]
    with pytest.raises(ConfigError, match='client "west" has no data, but others have'):
        Config(**settings | {"clients": clients})
    with pytest.raises(ConfigError, match=r'"client-00" and "client-01" have the same data, a\.csv'):
        Config(**settings | {"clients": [{"data": "a.csv", "count": 2}]})
    schema = load_schema(settings["schema_file"])
    part = read_data(tmp_path / "north.csv", schema)
    given = SHORT | {"clients": [{"name": "north"}, {"name": "south"}]}
    with pytest.raises(ConfigError, match='so "west" is without its counterpart'):
        fedal.run(Config(**given), tmp_path / "run", data={"north": part, "south": part, "west": part})
    other = read_data(tmp_path / "south.csv", schema.model_copy(update={"positive": "no"}))
    with pytest.raises(DataError, match=r'client "north" has the schema .*, client "south"'):
        fedal.run(Config(**given), tmp_path / "run", data={"north": part, "south": other}, public=part.train_x)


def test_tensors_that_are_called_own_are_divided_like_any_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = fedal.data.from_tensors(rng.normal(size=(200, 4)), np.arange(200) % 2)
    run = fedal.run(Config(clients=2, **SHORT), tmp_path / "run", data=data)
    assert data.name == run.config.dataset == "own" and run.config.partition == "dirichlet"
    with pytest.raises(ConfigError, match='there is no dataset "own"'):
        Config(dataset="own")


def test_theory_is_not_measured_where_clients_see_different_inputs(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = fedal.run(Config(**settings), tmp_path / "run")
    with pytest.raises(ConfigError, match='client "south" lacks columns'), restored(run):
        pass


def test_the_commands_take_files_of_each_client(tmp_path: Path, settings: dict[str, Any]) -> None:
    import tomli_w

    tables = {key: value for key, value in settings.items() if key not in ("tau", "metrics")}
    (tmp_path / "f.toml").write_text(tomli_w.dumps(tables | {"options": {"tau": 2}}), encoding="utf-8")
    answer = command("run", "--config", tmp_path / "f.toml", "--out", tmp_path / "run", "--quiet")
    assert answer.code == 0 and "warning: " in answer.err and 'lacks "income"' in answer.err
    refused = command("export-sites", "--config", tmp_path / "f.toml", "--out", tmp_path / "sites")
    assert refused.code == 2 and "each client has its own data already" in refused.err
    assert command("report", tmp_path / "run").code == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "by-owner" in page and "NaN" not in re.sub("<script.*?</script>", "", page, flags=re.DOTALL)
    shown = command("partition", "--preview", "--config", tmp_path / "f.toml", "--out", tmp_path)
    assert shown.code == 0 and "own, 3 clients, by-owner" in shown.out
    words = ("--config", tmp_path / "f.toml", "--grid", "lr=1e-3,1e-2", "--metric", "brier", "--jobs", 1)
    tuned = command("tune", *words, "--out", tmp_path / "tune", "--quiet")
    assert tuned.code == 0, tuned.err
    assert "Brier score of the final models on their clients' own held-out samples" in tuned.out
