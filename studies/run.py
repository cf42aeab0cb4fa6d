"""Runs what is missing of a plan, in the background: it takes hours."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedal.campaigns.job import Job, refuse_other_runs
from fedal.campaigns.pool import JobOutcome, run_jobs
from studies.results_plan import Study, result_path


def missing(studies: Iterable[Study], runs: Path, folder: Path, only_seed: int | None = None) -> list[Job]:
    """The unfinished jobs without a result file in `folder`, in order.

    Raises ConfigError if the folder of a job holds a run with other settings.
    """
    jobs = [
        job
        for study in studies
        for job in study.jobs(runs)
        if only_seed in (None, job.seed) and not result_path(folder, study, job.name, job.seed).exists()
    ]
    return unfinished(jobs)


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """Raises ConfigError if a folder holds a run with other settings."""
    refuse_other_runs(jobs)
    return [job for job in jobs if not job.is_finished]


def run_plan(jobs: list[Job], at_once: int) -> list[Job]:
    """Runs the jobs, each on one core in its own process. Returns those that failed, which stop no others.

    On SIGTERM or Ctrl-C the runs finish their round and save, then Stopped is raised.
    """
    with _signals_set() as stop:
        outcomes = run_jobs(jobs, at_once, watch=_tell, should_stop=stop.is_set, ended=_tell_end, always_spawn=True)
    return [outcome.job for outcome in outcomes if outcome.run is None]


@contextmanager
def _signals_set() -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and Ctrl-C set."""
    event = threading.Event()
    earlier = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _tell(job: Job, event: str, details: Any) -> None:
    if event == "started":
        done, total = details
        _say(job, f"resumes after iteration {done} of {total}" if done else f"starts, {total} iterations")
    elif event == "warned":
        _say(job, f"warning: {details}")


def _tell_end(outcome: JobOutcome) -> None:
    if outcome.run is not None:
        final = outcome.run.final
        _say(outcome.job, f"final test accuracy {final['test_accuracy']:.4f} after {final['iteration']} iterations")
    else:
        _say(outcome.job, f"failed: {outcome.failure or outcome.not_applicable}")


def _say(job: Job, words: str) -> None:
    print(f"{'/'.join(job.folder.parts[-3:])}: {words}", flush=True)
