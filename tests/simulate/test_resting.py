"""Clients at rest on disk: the bits of clients in memory, after a stop and after a kill; only the cohort in memory."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import fedal
from e2e.lives import outcome
from fedal import methods
from fedal.config import Config
from fedal.durable import TEMPORARY
from fedal.engine.resting import VISITORS
from fedal.errors import CheckpointError, ConfigError, FedalError, NonFiniteError, Stopped
from fedal.learners.torch_learner import TorchLearner
from fedal.records.rest import RestFolder, resolved
from fedal.simulate.assemble import assemble
from fedal.simulate.participation import absence, cohort
from observers import StopAt
from splits import QUICK, InOrder, restore, same_bits, state_of, tiny_split

SETTINGS: dict[str, Any] = dict(
    method="fedal", clients=6, models=["mlp-small", "cnn-small-bn"], tau=2, batch_size=8, rounds=6, participation=0.5,
    eval_every=4, eval_samples=60, workers=2, checkpoint_every=2,
)  # fmt: skip


def opened(path: Path) -> RestFolder:
    folder = RestFolder(path)
    folder.open()
    return folder


def test_a_state_at_rest_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    folder = opened(tmp_path / "rest")
    state = {"learner": {"w": torch.randn(3, 4), "n": 2}, "method": {"kept": {"a": torch.arange(3)}, "none": None}}
    assert folder.read("anna") is None
    folder.write("anna", state)
    old = folder.read("anna")
    folder.write("anna", {"learner": {"w": torch.zeros(1)}, "method": {}})
    assert same_bits(old, state)  # a reader of the old file keeps it
    folder.remove("anna")
    assert folder.read("anna") is None
    assert opened(tmp_path / "rest").read("anna") is None


def test_a_file_is_removed_only_when_no_checkpoint_refers_to_it(tmp_path: Path) -> None:
    folder, state = opened(tmp_path / "rest"), {"learner": {"w": torch.ones(2)}, "method": {}}

    def stems() -> set[str]:
        names = {path.name.removesuffix(".json").removesuffix(".tensors") for path in (tmp_path / "rest").iterdir()}
        assert len([*(tmp_path / "rest").iterdir()]) == 2 * len(names)
        return names

    saved = []
    for rounds in (1, 2, 3, 4):
        folder.at(rounds)
        folder.write("anna.b", state)
        if rounds != 2:  # no checkpoint after round 2: its state is gone with the next one
            folder.sync()
            saved.append({"clients": {"anna.b": folder.reference("anna.b"), "ben": folder.reference("ben")}})
            folder.saved(saved[-2:])
        expected = {1: [1], 2: [1, 2], 3: [1, 3], 4: [3, 4]}[rounds]
        assert stems() == {f"anna.b.{each:07}" for each in expected}
    folder.at(5)
    folder.write("anna.b", state)  # then the process is killed
    (tmp_path / "rest" / f"{TEMPORARY}ben").touch()
    again = opened(tmp_path / "rest")
    again.saved(saved[-2:])
    again.adopt("anna.b", saved[-1]["clients"]["anna.b"])
    assert stems() == {"anna.b.0000003", "anna.b.0000004"} and same_bits(again.read("anna.b"), state)


@pytest.mark.parametrize("suffix", [".json", ".tensors"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_file_at_rest_is_named(suffix: str, damage: str, tmp_path: Path) -> None:
    folder = opened(tmp_path / "rest")
    folder.write("anna", {"learner": {"w": torch.ones(2)}, "method": {"n": 11}})
    path = tmp_path / "rest" / f"anna.0000000{suffix}"
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[content.index(b"11") if suffix == ".json" else -1] ^= 1
        path.write_bytes(content)
    again = opened(tmp_path / "rest")
    again.adopt("anna", folder.reference("anna"))
    with pytest.raises(CheckpointError, match=r"anna.0000000\.(json|tensors): .*(damaged|missing)"):
        again.read("anna")


@pytest.mark.parametrize("stem", ["ben.0000001", "anna.x", "anna./../0000001", ""])
def test_a_reference_to_other_files_is_refused(stem: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='client "anna" is said to be in'):
        opened(tmp_path / "rest").adopt("anna", {"at_rest": stem, "sha256": ""})


def test_non_finite_states_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match='client "anna": learner/w has non-finite values after round 0'):
        opened(tmp_path / "rest").write("anna", {"learner": {"w": torch.full((2,), torch.nan)}, "method": {}})


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "rest").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link"):
        RestFolder(tmp_path / "rest").open()
    assert (tmp_path / "elsewhere" / "file").exists()


@pytest.mark.parametrize("method", [name for name in methods.names() if "every-client" not in methods.get(name).needs])
def test_every_method_has_the_same_bits_at_rest_on_disk(method: str, tmp_path: Path) -> None:
    config = Config(
        method=method, clients=4, models="mlp-small", tau=1, batch_size=8, lr=0.01, participation=2,
        options=QUICK.get(method, {}),
    )  # fmt: skip
    split = tiny_split(config.client_names)
    files = opened(tmp_path / "rest")
    resting, awake = (assemble(config, split, InOrder(), rest=rest).federation for rest in (files, None))
    for t in range(3):
        assert resting.run_round(t, absence(config, t)) == awake.run_round(t, absence(config, t))
        assert set(resting.observed()) == set(awake.observed())
    found, expected = state_of(resting), state_of(awake)
    drawn = {name for t in range(3) for name in config.client_names if not absence(config, t)(name, 0)}  # type: ignore[misc]
    assert {name for name, state in found["clients"].items() if state} == drawn
    assert all(same_bits(files.read(name), expected["clients"][name]) for name in drawn)
    assert same_bits(found["server"], expected["server"])
    states = {**found, "clients": resolved(found["clients"], tmp_path / "rest")}
    again = restore(assemble(config, split, InOrder()).federation, states)  # in memory, from the files at rest
    assert same_bits(state_of(again)["clients"], expected["clients"])
    back = assemble(config, split, InOrder(), rest=opened(tmp_path / "other")).federation
    assert {*restore(back, states).state_dict()["clients"]} == {*config.client_names}  # and the other way round
    assert same_bits(
        resolved(state_of(back)["clients"], tmp_path / "other"), resolved(found["clients"], tmp_path / "rest")
    )


def test_a_run_on_disk_has_the_bits_of_one_in_memory_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    expected = outcome(fedal.run(Config(**SETTINGS), tmp_path / "memory").path)
    config = Config(**SETTINGS, rest="disk")
    whole = fedal.run(config, tmp_path / "disk").path
    assert outcome(whole) == expected
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "stopped", callbacks=[StopAt(6)])
    left = opened(
        tmp_path / "stopped" / "rest"
    )  # as a killed process leaves it: states of a round that was never saved
    left.at(4)
    left.write("client-00", {"learner": {"w": torch.zeros(1)}, "method": {}})
    assert outcome(fedal.resume(tmp_path / "stopped").path) == expected


def test_a_kill_at_any_write_leaves_a_run_that_resumes_with_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after a state is written, files are synced and the removal of old ones, with a checkpoint between."""
    config = Config(**{**SETTINGS, "rounds": 4, "workers": 1, "eval_every": 100}, rest="disk")
    expected = outcome(fedal.run(config, tmp_path / "whole").path)

    class Killed(BaseException):
        pass

    left = 0
    for name in ("write", "sync", "saved"):
        done = getattr(RestFolder, name)

        def counted(self: RestFolder, *given: Any, done: Any = done) -> None:
            nonlocal left
            for work in (lambda: None, lambda: done(self, *given)):
                left -= 1
                if left == 0:
                    raise Killed
                work()

        monkeypatch.setattr(RestFolder, name, counted)
    for moment in range(1, 60, 4):
        left, path = moment, tmp_path / str(moment)
        try:
            fedal.run(config, path)
        except Killed:
            left = -1
            fedal.resume(path)
        assert outcome(path) == expected, moment
    assert left > 0  # the last moments are after the end of a run


def test_the_states_of_the_next_cohort_are_fetched_before_a_round_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(**SETTINGS, rest="disk")
    expected, seen, done = [], [], RestFolder.expect

    def noted(self: RestFolder, clients: Any) -> None:
        expected.append({*clients})
        done(self, clients)

    monkeypatch.setattr(RestFolder, "expect", noted)
    monkeypatch.setattr("os.posix_fadvise", lambda handle, *_: seen.append(Path(f"/proc/self/fd/{handle}").readlink()))
    fedal.run(config, tmp_path / "run")
    assert expected == [cohort(config, t) for t in range(1, config.total_rounds)]
    known, found = set[str](), []  # clients with a state when the round before theirs begins
    for t in range(1, config.total_rounds):
        found += sorted(cohort(config, t) & known)
        known |= cohort(config, t - 1)
    assert sorted(path.name.split(".")[0] for path in seen) == sorted(found)
    assert all(path.suffix == ".tensors" for path in seen)


def test_of_very_many_clients_only_the_models_that_were_evaluated_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedal.simulate.session.MANY", 5)
    config = Config(**{**SETTINGS, "clients": 5, "eval_clients": 2, "rounds": 2}, rest="disk")
    assert len([*(fedal.run(config, tmp_path / "few").path / "models").glob("*.safetensors")]) == 5
    run = fedal.run(config.with_(clients=6), tmp_path / "many")
    saved = {path.stem for path in (run.path / "models").glob("*.safetensors")}
    assert saved == {row["client"] for row in run.client_metrics if row["final"]} and len(saved) == 2
    about = json.loads((run.path / "models" / "models.json").read_text())
    assert about["training"]["clients"] == 6 and {*about["models"]} == saved
    other = next(name for name in run.client_models if name not in saved)
    with pytest.raises(FedalError, match="Set eval_clients to save more"):
        run.model(other)


def test_a_file_that_cannot_be_fetched_early_is_reported_when_it_is_read(tmp_path: Path) -> None:
    folder = opened(tmp_path / "rest")
    folder.write("anna", {"learner": {"w": torch.ones(2)}, "method": {}})
    next((tmp_path / "rest").glob("*.tensors")).unlink()
    folder.expect(["anna", "bert"])
    with pytest.raises(CheckpointError, match="missing or no file"):
        folder.read("anna")


def test_a_checkpoint_does_not_grow_with_the_clients_at_rest(tmp_path: Path) -> None:
    sizes = []
    for clients in (6, 12):
        config = Config(**{**SETTINGS, "clients": clients, "participation": 4, "method": "fedmd"}, rest="disk")
        path = fedal.run(config, tmp_path / str(clients)).path
        sizes.append(max(file.stat().st_size for file in (path / "checkpoints").glob("*.tensors")))
        assert len([*(path / "rest").glob("*.tensors")]) <= 2 * clients
    assert sizes[0] == sizes[1] < 1000


def test_only_the_cohort_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[TorchLearner] = weakref.WeakSet()
    made = TorchLearner.__init__

    def noted(self: TorchLearner, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        alive.add(self)

    monkeypatch.setattr(TorchLearner, "__init__", noted)
    config = Config(method="fedmd", clients=40, models="mlp-small", tau=1, batch_size=8, participation=4)
    assembly = assemble(config, tiny_split(config.client_names), InOrder(), rest=opened(tmp_path / "rest"))
    most = 0

    def count(uploads: Any) -> None:
        nonlocal most
        gc.collect()
        most = max(most, len(alive))

    assembly.federation.watch.exchanged = count
    for t in range(5):
        assembly.federation.run_round(t, absence(config, t))
        assembly.view.evaluate_all()
    gc.collect()
    assert most <= 4 + VISITORS + 1 and len(alive) <= VISITORS + 1  # and the one that was made to be checked


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"participation": 1.0}, "rest = disk: all clients take part in every round"),
        ({"engine": "ray"}, "rest = disk: engine = ray keeps its clients in actors"),
        ({"instruments": "zeta"}, "rest = disk: instruments needs the models in memory"),
    ],
)
def test_what_needs_clients_in_memory_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config(**{**SETTINGS, "rest": "disk", **changes})
