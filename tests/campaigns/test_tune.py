"""Searches: what they try, how they score, and that no finished trial is repeated."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedal
from commands import COMMAND
from commands import fedal as command
from fedal.campaigns.objective import evaluate, with_held_out
from fedal.campaigns.tune import PAPER_STAGES, SAMPLE_BATCH, Search, paper_stages, parse_space
from fedal.config import load_config
from fedal.data import load
from fedal.errors import Stopped

SETTINGS: dict[str, Any] = dict(clients=2, models="mlp-small", iterations=10, batch_size=16, eval_samples=50)
WORDS = ("--clients", 2, "--models", "mlp-small", "--iterations", 10, "--set", "batch_size=16", "--quiet")


class Watched:
    """Records the trials that start."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def __call__(self, job: Any, event: str, details: object) -> None:
        if event == "started":
            self.started.append(job.name)


@pytest.mark.processes
def test_a_grid_search_writes_a_config_that_runs(tmp_path: Path) -> None:
    answer = command("tune", *WORDS, "--grid", "lr=1e-5,1e-2", "--grid", "tau=2", "--out", tmp_path / "t")
    assert answer.code == 0, answer.err
    best = load_config(tmp_path / "t" / "best.toml", {})
    assert (best.lr, best.tau, best.iterations) == (0.01, 2, 10)
    text = (tmp_path / "t" / "best.toml").read_text()
    assert "belong to no client" in text and "Trials had validation = 0.1; this run trains on all the data." in text
    assert best.validation == 0 and load_config(tmp_path / "t/trials/lr=0.01,tau=2/config.toml", {}).validation == 0.1
    with open(tmp_path / "t" / "trials.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["lr"] for row in rows] == ["1e-05", "0.01"]
    assert command("run", "--config", tmp_path / "t" / "best.toml", "--out", tmp_path / "r", "--quiet").code == 0


def test_the_default_objective_sees_transfer_between_clients(tmp_path: Path) -> None:
    settings = {**SETTINGS, "method": "fedmd", "clients": 4, "alpha": 0.2, "iterations": 60, "lr": 0.003}
    found = Search(settings, tmp_path, jobs=1).grids([{"distillation": (0.0, 1.0)}])
    alone, together = found.trials
    assert together.score > alone.score + 0.1  # type: ignore[operator]
    for trial in found.trials:
        run = fedal.Run(trial.folder)
        assert trial.score == run.final["validation_accuracy"]
    assert evaluate(fedal.Run(together.folder), "train") < evaluate(fedal.Run(alone.folder), "train") + 0.02


def test_the_share_held_out_is_a_tenth_unless_given() -> None:
    assert with_held_out({}, "validation") == with_held_out({"validation": 0.0}, "validation") == {"validation": 0.1}
    assert with_held_out({"validation": 0.3}, "validation") == {"validation": 0.3}
    assert with_held_out({}, "own_validation") == {"own_validation": 0.1}
    assert with_held_out({}, "train") == with_held_out({}, "test") == {}


@pytest.mark.processes
def test_a_search_says_first_what_it_holds_out(tmp_path: Path) -> None:
    loud = [word for word in WORDS if word != "--quiet"]
    answer = command("tune", *loud, "--grid", "lr=1e-3", "--objective", "own_validation", "--out", tmp_path / "t")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("own_validation = 0.1: this share of each client's samples is held out")


def test_training_accuracy_is_that_of_the_final_models_on_their_own_data(tmp_path: Path) -> None:
    run = fedal.run(fedal.Config(method="fedal", **SETTINGS), tmp_path)
    with np.load(tmp_path / "partition.npz") as saved:
        owned = {name: saved[f"client/{name}"] for name in run.config.client_names}
    data = load("digits")
    expected = []
    for client, indices in owned.items():
        with torch.no_grad():
            predicted = run.model(client)(torch.as_tensor(data.train_x[indices])).argmax(-1).numpy()
        expected.append((predicted == data.train_y[indices]).mean())
    assert evaluate(run, "train") == pytest.approx(np.mean(expected))
    assert evaluate(run, "test") == run.final["test_accuracy"]


def test_a_stopped_search_resumes_without_repeating_finished_trials(tmp_path: Path) -> None:
    grid = [{"lr": (1e-3, 1e-2), "tau": (1, 5)}]
    watch = Watched()
    stopped = Search(SETTINGS, tmp_path, jobs=1, watch=watch, should_stop=lambda: len(watch.started) == 3)
    with pytest.raises(Stopped, match="Rerun the same command"):
        stopped.grids(grid)
    assert len(watch.started) == 3
    again = Watched()
    found = Search(SETTINGS, tmp_path, jobs=1, watch=again).grids(grid)
    assert again.started == ["lr=0.01,tau=1", "lr=0.01,tau=5"]  # the third resumes, the fourth is new
    assert len(found.trials) == 4 and all(trial.score is not None for trial in found.trials)
    grown = Watched()
    Search(SETTINGS, tmp_path, jobs=1, watch=grown).grids([{"lr": (1e-3, 1e-2), "tau": (1, 5, 10)}])
    assert grown.started == ["lr=0.001,tau=10", "lr=0.01,tau=10"]


@pytest.mark.processes
def test_two_parallel_trials_produce_the_same_table(tmp_path: Path) -> None:
    settings = {**SETTINGS, "optimizer": "sgd"}
    stages = [{"lr": (1e-2, 1e30, 1e-3)}, {"tau": (5, 2)}]
    for jobs in (1, 2):
        Search(settings, tmp_path / str(jobs), jobs=jobs).grids(stages).write()
    one, two = ((tmp_path / jobs / "trials.csv").read_text() for jobs in ("1", "2"))
    assert one == two and len(one.splitlines()) == 6


@pytest.mark.processes
def test_a_killed_search_resumes(tmp_path: Path) -> None:
    words = [*map(str, WORDS), "--iterations", "200", "--grid", "lr=1e-3,1e-2", "--out", str(tmp_path / "t")]
    killed = subprocess.Popen([*COMMAND, "tune", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = tmp_path / "t" / "trials" / "lr=0.001" / "score.json"
    end = time.monotonic() + 60
    while not first.exists() and killed.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = os.stat(first).st_mtime_ns
    answer = command("tune", *words)
    assert answer.code == 0, answer.err
    assert os.stat(first).st_mtime_ns == before
    assert (tmp_path / "t" / "best.toml").exists()


def test_the_papers_preset_has_two_stages_and_the_second_starts_from_the_best_of_the_first(tmp_path: Path) -> None:
    assert [len(values) for stage in PAPER_STAGES for values in stage.values()] == [4, 5, 4, 4]
    assert paper_stages("fedal") == list(PAPER_STAGES)
    assert paper_stages("fedmd") == [PAPER_STAGES[0]]
    stages = [{"lr": (1e-5, 1e-2)}, {"discriminator_lr": (1e-4, 1e-3)}]
    found = Search(SETTINGS, tmp_path, jobs=1).grids(stages)
    assert [dict(trial.values) for trial in found.trials[2:]] == [
        {"lr": 0.01, "discriminator_lr": 1e-4},
        {"lr": 0.01, "discriminator_lr": 1e-3},
    ]


def test_a_trial_that_diverges_is_a_result_and_does_not_end_the_search(tmp_path: Path) -> None:
    settings = {**SETTINGS, "optimizer": "sgd"}
    found = Search(settings, tmp_path, jobs=1).grids([{"lr": (1e30, 1e-2)}])
    assert found.trials[0].score is None and "finite" in found.trials[0].failure
    assert found.best.values == {"lr": 1e-2}
    again = Watched()
    Search(settings, tmp_path, jobs=1, watch=again).grids([{"lr": (1e30, 1e-2)}])
    assert again.started == []


def test_the_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    Search(SETTINGS, tmp_path, jobs=1).grids([{"tau": (5,)}])
    with pytest.raises(fedal.FedalError, match="other settings"):
        Search({**SETTINGS, "iterations": 20}, tmp_path, jobs=1).grids([{"tau": (5,)}])


def test_a_sampler_chooses_trials_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: fedal[tune]")
    space = parse_space(["tau=1,5"], ["lr=1e-4:1e-1"])
    first = Search(SETTINGS, tmp_path, jobs=1).sample(space, 2)
    assert all(1e-4 <= trial.values["lr"] <= 1e-1 and trial.values["tau"] in (1, 5) for trial in first.trials)
    again = Watched()
    more = Search(SETTINGS, tmp_path, jobs=1, watch=again).sample(space, 3)
    assert len(again.started) == 1 and len(more.trials) == 3


def test_a_stopped_sampler_resumes_with_the_same_choices(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: fedal[tune]")
    space, trials = parse_space([], ["lr=1e-4:1e-1"]), 3 * SAMPLE_BATCH  # more than are chosen before the first score
    watch = Watched()
    stopped = Search(
        SETTINGS, tmp_path / "a", jobs=1, watch=watch, should_stop=lambda: len(watch.started) == trials - 1
    )
    with pytest.raises(Stopped):
        stopped.sample(space, trials)
    resumed = Search(SETTINGS, tmp_path / "a", jobs=1).sample(space, trials)
    uninterrupted = Search(SETTINGS, tmp_path / "b", jobs=1).sample(space, trials)
    assert [trial.values for trial in resumed.trials] == [trial.values for trial in uninterrupted.trials]
    assert [trial.score for trial in resumed.trials] == [trial.score for trial in uninterrupted.trials]
    assert len(list((tmp_path / "a" / "trials").iterdir())) == trials


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to search. Give values with --grid"),
        (("--grid", "lr"), "--grid lr: expected values"),
        (("--grid", "learning_rate=1e-3"), "Did you mean lr?"),
        (("--range", "lr=1e-4:1e-1"), "--range needs --trials N"),
        (("--range", "lr=1:1", "--trials", 2), "0 < low < high"),
        (("--grid", "lr=1e-3", "--objective", "best"), "expected validation, own_validation, train, test"),
        (("--grid", "validation=0.1,0"), "validation = 0: a trial without such data has no score"),
    ],
)
def test_mistakes_are_reported_before_anything_is_written(tmp_path: Path, words: tuple[object, ...], said: str) -> None:
    answer = command("tune", *words, "--out", tmp_path / "t")
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / "t").exists()


def test_tuning_on_the_test_set_is_never_silent(tmp_path: Path) -> None:
    answer = command("tune", *WORDS, "--grid", "lr=1e-3", "--objective", "test", "--out", tmp_path / "t")
    assert answer.code == 0 and "no longer a fair estimate" in answer.err
    assert "on the test set" in (tmp_path / "t" / "best.toml").read_text()
