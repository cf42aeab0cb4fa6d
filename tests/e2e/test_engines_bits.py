"""Things that must not change a bit of a result: workers, repetition, other clients, running in two parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import fedal
from commands import fedal as command
from e2e.lives import outcome
from fedal import methods
from fedal.config import Config
from fedal.engine.threads import thread_workers
from fedal.learners.torch_learner import TorchLearner
from fedal.records.checkpoint import save_checkpoint
from fedal.records.tensor_file import open_tensors
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import prepare_split

SETTINGS: dict[str, Any] = dict(
    method="fedal",
    clients=4,
    models=["mlp-small", "cnn-small", "cnn-small-bn"],
    iterations=12,
    tau=2,
    batch_size=16,
    eval_every=4,
    eval_samples=60,
    seed=1,
    workers=1,
)


@pytest.fixture(scope="module")
def run_it(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def run_it(**changes: Any) -> Path:
        return fedal.run(Config(**{**SETTINGS, **changes}), tmp_path_factory.mktemp("bits") / "run").path

    return run_it


@pytest.fixture(scope="module")
def reference(run_it: Callable[..., Path]) -> Path:
    return run_it()


def test_the_compared_outcome_holds_models_and_records(reference: Path) -> None:
    found = outcome(reference)
    assert {f"client-0{n}.safetensors" for n in range(4)} | {"metrics.jsonl", "clients.jsonl"} == set(found)
    assert len(found["metrics.jsonl"]) == 1 + 2 * 3 + 1
    assert len(found["clients.jsonl"]) == 4 * (1 + 2 * 3 + 1)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_no_bit(run_it: Callable[..., Path], reference: Path, workers: int) -> None:
    assert outcome(run_it(workers=workers)) == outcome(reference)


def test_the_same_seed_produces_the_same_bits(run_it: Callable[..., Path], reference: Path) -> None:
    assert outcome(run_it()) == outcome(reference)


def test_global_random_state_does_not_matter_and_is_left_alone(run_it: Callable[..., Path], reference: Path) -> None:
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    again = run_it()
    assert torch.equal(torch.get_rng_state(), before)
    assert outcome(again) == outcome(reference)


def test_another_seed_changes_the_bits_everywhere(run_it: Callable[..., Path], reference: Path) -> None:
    other, first = outcome(run_it(seed=2)), outcome(reference)
    assert all(other[name] != first[name] for name in first)
    with np.load(reference / "partition.npz") as saved:
        again = prepare_split(Config(**SETTINGS, public_size=300))
        assert np.array_equal(saved["client/client-00"], again.clients["client-00"])
        assert not np.array_equal(saved["public"], prepare_split(Config(**{**SETTINGS, "seed": 2})).public)


def test_adding_a_client_changes_neither_models_nor_first_weights_nor_public_batches_of_the_others() -> None:
    assemblies = []
    for clients in (4, 5):
        config = Config(**{**SETTINGS, "clients": clients, "models": "auto", "seed": 3})
        with thread_workers(1) as workers:
            assemblies.append((config, assemble(config, prepare_split(config), workers)))
    (_, four), (_, five) = assemblies
    assert set(five.model_names) - set(four.model_names) == {"client-04"}
    assert len(set(five.model_names.values())) > 1, "a draw in which all have the same model would prove nothing"
    for name, model in four.model_names.items():
        assert five.model_names[name] == model
        one, other = four.learners[name], five.learners[name]
        assert isinstance(one, TorchLearner) and isinstance(other, TorchLearner)
        theirs = other.weights()
        assert all(torch.equal(value, theirs[key]) for key, value in one.weights().items())
    for t, i in [(0, 0), (7, 1), (100, 0)]:
        batches = [each.view.logic("client-00").public.batch(t, i) for each in (four, five)]
        assert torch.equal(*batches)


@pytest.fixture(scope="module")
def run_in_two_parts(run_it: Callable[..., Path]) -> Path:
    path = run_it(iterations=6)
    assert command("resume", path, "--iterations", 12, "--quiet").code == 0
    return path


def test_an_extended_run_equals_one_long_run(run_in_two_parts: Path, reference: Path) -> None:
    assert outcome(run_in_two_parts) == outcome(reference)
    assert fedal.load_run(run_in_two_parts).config.iterations == 12


@pytest.mark.parametrize("method", methods.names())
def test_a_resumed_run_keeps_nothing_of_its_checkpoint(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leftover tensor would keep the whole file in memory, and on disk after its deletion."""
    config = Config(method=method, clients=3, models="same", iterations=1, tau=1, batch_size=8, eval_samples=10)
    path = fedal.run(config, tmp_path / "run").path
    opened: list[StorageWeakRef] = []
    gone: list[bool] = []

    def load(file: Path) -> torch.Tensor:
        content = open_tensors(file)
        opened.append(StorageWeakRef(content.untyped_storage()))
        return content

    def save(folder: Path, rounds: int, state: dict[str, Any]) -> None:
        gone.append(all(storage.expired() for storage in opened))
        save_checkpoint(folder, rounds, state)

    monkeypatch.setattr("fedal.records.checkpoint.open_tensors", load)
    monkeypatch.setattr("fedal.simulate.session.save_checkpoint", save)
    fedal.resume(path, iterations=2)
    assert opened and gone == [True]


def test_resuming_a_finished_run_reports_it_and_changes_nothing(run_in_two_parts: Path) -> None:
    files = {path: path.read_bytes() for path in run_in_two_parts.rglob("*") if path.is_file()}
    for words in (["resume", run_in_two_parts], ["resume", run_in_two_parts, "--iterations", 12]):
        answer = command(*words)
        assert answer.code == 0
        assert "already complete" in answer.out + answer.err
    assert files == {path: path.read_bytes() for path in run_in_two_parts.rglob("*") if path.is_file()}


def test_a_run_can_only_be_extended(run_in_two_parts: Path) -> None:
    answer = command("resume", run_in_two_parts, "--iterations", 8)
    assert answer.code == 2
    assert answer.err.startswith("error: iterations = 8:") and "can only be extended" in answer.err
    assert fedal.load_run(run_in_two_parts).is_complete
