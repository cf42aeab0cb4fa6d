"""The pool of all campaigns: the order of jobs, failures, and runs of other processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedal.campaigns.job import Job
from fedal.campaigns.pool import ENDED, _Worker, run_jobs
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.errors import NonFiniteError, Stopped
from fedal.records.folder import RunFolder
from fedal.records.run import read_rows

SETTINGS: dict[str, Any] = dict(
    method="local", clients=2, models="mlp-small", iterations=4, tau=2, batch_size=8, eval_every=2, eval_samples=50
)


def job(folder: Path, name: str, **settings: Any) -> Job:
    return Job(name, 0, Config(**SETTINGS | settings), folder / name)


class Events:
    """Records the events of the pool: (name of the job, event)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, job: Job, event: str, details: object) -> None:
        self.seen.append((job.name, event))

    def of(self, event: str) -> list[str]:
        return [name for name, each in self.seen if each == event]


@pytest.mark.processes
def test_outcomes_are_in_the_order_of_the_jobs_and_a_failure_is_one_of_them(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "long", iterations=400), job(tmp_path, "diverges", optimizer="sgd", lr=1e30)]
    jobs += [job(tmp_path, "mixed", method="fedavg", models=["mlp-small", "cnn-small"]), job(tmp_path, "short")]
    ended: list[str] = []
    outcomes = run_jobs(jobs, 2, ended=lambda outcome: ended.append(outcome.job.name))
    assert [outcome.job for outcome in outcomes] == jobs
    assert [outcome.run is not None for outcome in outcomes] == [True, False, False, True]
    assert isinstance(outcomes[1].failure, NonFiniteError) and "finite" in str(outcomes[1].failure)
    assert "one architecture" in outcomes[2].not_applicable
    assert sorted(ended) == sorted(job.name for job in jobs)


def test_a_finished_run_leaves_nothing_in_the_memory_of_the_next(tmp_path: Path) -> None:
    def datasets() -> list[Dataset]:
        return [found for found in gc.get_objects() if type(found) is Dataset]

    others = datasets()  # of fixtures and other tests in this process
    gc.disable()  # whether it runs on its own between two runs is chance
    try:
        run_jobs([job(tmp_path, "first"), job(tmp_path, "second")], 1)
        assert len(datasets()) == len(others)
    finally:
        gc.enable()


@pytest.mark.processes
def test_a_failure_that_is_raised_lets_the_other_runs_save_first(tmp_path: Path) -> None:
    endless = job(tmp_path, "endless", iterations=10**6, checkpoint_every=10**6)
    diverges = job(tmp_path, "diverges", optimizer="sgd", lr=1e30)
    folder = RunFolder(endless.folder)

    def watch(job: Job, event: str, details: object) -> None:
        end = time.monotonic() + 60
        while job is diverges and not read_rows(folder.metrics) and time.monotonic() < end:
            time.sleep(0.05)  # delays the failure until both jobs run

    with pytest.raises(NonFiniteError):
        run_jobs([endless, diverges], 2, watch=watch)
    assert list(folder.checkpoints.glob("round-*.json")) and not folder.failure.exists()
    assert not multiprocessing.active_children()


@pytest.mark.processes
def test_a_killed_process_fails_only_its_own_job(tmp_path: Path) -> None:
    killed, intact = job(tmp_path, "killed", iterations=10**6), job(tmp_path, "intact")
    events = Events()

    def watch(job: Job, event: str, details: object) -> None:
        events(job, event, details)
        if (job.name, event) == ("killed", "started"):
            (process,) = multiprocessing.active_children()
            process.kill()

    first, second = run_jobs([killed, intact], 1, watch=watch, ended=lambda outcome: None, always_spawn=True)
    assert "killed: the run's process was ended by signal 9 (Killed)" in str(first.failure)
    assert second.run is not None
    assert events.of("started") == ["killed", "intact"]


def test_a_run_of_another_process_is_left_to_it_until_all_others_are_done(tmp_path: Path) -> None:
    busy, free = job(tmp_path, "busy"), job(tmp_path, "free")
    with pytest.raises(Stopped, match="Rerun the same command"):
        run_jobs([busy], 1, should_stop=lambda: RunFolder(busy.folder).config.exists())
    events = Events()
    with ExitStack() as other_process:
        other_process.enter_context(RunFolder(busy.folder).locked())

        def watch(job: Job, event: str, details: object) -> None:
            events(job, event, details)
            if (job.name, event) == ("free", "finished"):
                other_process.close()

        outcomes = run_jobs([busy, free], 1, watch=watch)
    assert all(outcome.run is not None for outcome in outcomes)
    assert events.of("started") == ["free", "busy"] and events.of("warned") == ["busy"]


def test_a_run_that_another_process_has_finished_meanwhile_is_skipped(tmp_path: Path) -> None:
    first, second = job(tmp_path, "first"), job(tmp_path, "second")
    events = Events()

    def watch(job: Job, event: str, details: object) -> None:
        events(job, event, details)
        if (job.name, event) == ("first", "started"):
            run_jobs([second], 1)

    run_jobs([first, second], 1, watch=watch)
    assert events.of("started") == ["first"] and events.of("finished") == ["first", "second"]


@pytest.mark.processes
def test_ctrl_c_does_not_end_a_worker_that_is_still_starting(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes, also to one that still imports fedal."""
    worker = _Worker()
    assert worker.process.pid is not None
    for _ in range(20):
        os.kill(worker.process.pid, signal.SIGINT)
        time.sleep(0.05)
    worker.begin(0, job(tmp_path, "run"), 1)
    while (event := worker.pipe.recv())[0] != ENDED:
        pass
    assert event == (ENDED, None) and RunFolder(tmp_path / "run").summary.exists()
    worker.pipe.close()
    worker.process.join()
