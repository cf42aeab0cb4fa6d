"""Runs the jobs of a campaign in order, several in parallel: compare, tune, paper and the studies of docs/results.

The run folders hold all state: finished runs are skipped, unfinished ones resume, and those that another process is
running are left to it. Parallel runs use one process each: small networks are bound by the Python interpreter, which
the threads of a process share.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

from fedal.campaigns.job import Job, JobResult, Watcher, run_job
from fedal.errors import ConfigError, FedalError, FolderInUseError, RunError, Stopped
from fedal.machine import available_cores
from fedal.records.run import Run

POLL_S = 0.2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
ENDED = "ended"  # the last event of a job; its details are a JobResult


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: with a finished run, or with the reason why there is none."""

    job: Job
    run: Run | None = None
    not_applicable: str = ""
    failure: Exception | None = None


def raise_failure(outcome: JobOutcome) -> None:
    """Raises the failure, if any: for campaigns that need all of their runs."""
    if outcome.failure is not None:
        raise outcome.failure


def run_jobs(
    jobs: Sequence[Job],
    parallel: int = 0,
    *,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
    ended: Callable[[JobOutcome], None] = raise_failure,
    always_spawn: bool = False,
) -> list[JobOutcome]:
    """Runs or resumes all jobs, up to `parallel` at a time (0: one per core); returns outcomes in the order of `jobs`.

    Each outcome is also passed to `ended` as soon as it is known. If that raises, or `should_stop` returns True, the
    other runs finish their round and save; in the second case Stopped is raised. With `parallel` = 1, runs share this
    process unless `always_spawn` is set, which keeps a crash of a run from ending the campaign.
    """
    cores = available_cores()
    queue = _Queue(jobs, watch, should_stop, ended)
    queue.settle_finished()
    parallel = min(parallel or cores, len(queue.waiting))
    if parallel > 1 or always_spawn:
        _WorkerPool(queue, parallel, max(1, cores // max(1, parallel))).run()
    else:
        _run_here(queue)
    if queue.waiting:
        raise Stopped("stopped; finished runs are kept. Rerun the same command to continue.")
    return [queue.outcomes[place] for place in range(len(jobs))]


class _Queue:
    """The jobs that wait to run and the outcomes of the others. A job is identified by its place in the plan."""

    def __init__(
        self, jobs: Sequence[Job], watch: Watcher, should_stop: Callable[[], bool], ended: Callable[[JobOutcome], None]
    ) -> None:
        self.jobs, self._watch, self._should_stop, self._ended = jobs, watch, should_stop, ended
        self.waiting = list(range(len(jobs)))
        self.outcomes: dict[int, JobOutcome] = {}
        self._elsewhere: set[int] = set()
        self._is_stopped = False

    def should_stop(self) -> bool:
        self._is_stopped = self._is_stopped or self._should_stop()
        return self._is_stopped

    def settle_finished(self) -> None:
        for place in [place for place in self.waiting if self.jobs[place].is_finished]:
            self.waiting.remove(place)
            self.settle(place, None)

    def take(self) -> int | None:
        """The first job that no process is running; jobs that another process has finished meanwhile are settled."""
        self.settle_finished()
        for place in self.waiting:
            if not self.jobs[place].is_running_elsewhere:
                self.waiting.remove(place)
                return place
            self._report_elsewhere(place)
        return None

    def settle(self, place: int, result: JobResult) -> None:
        """Records how a job ended; a job that did not end goes back to the queue."""
        job = self.jobs[place]
        if isinstance(result, ConfigError) and job.is_finished:  # another process finished the run first
            result = None
        if isinstance(result, Stopped | FolderInUseError):
            self.waiting = sorted([*self.waiting, place])
            if isinstance(result, Stopped):
                self._is_stopped = True
            else:  # another process took the folder first
                self._report_elsewhere(place)
            return
        if isinstance(result, Exception):
            outcome = JobOutcome(job, failure=result)
        elif result is not None:
            outcome = JobOutcome(job, not_applicable=result)
            self._watch(job, "not applicable", result)
        else:
            run = Run(job.folder, trust=True, models=job.given.models_for(job.seed))
            outcome = JobOutcome(job, run)
            self._watch(job, "finished", run.final)
        self.outcomes[place] = outcome
        self._ended(outcome)

    def notify(self, place: int, event: str, details: Any) -> None:
        self._watch(self.jobs[place], event, details)

    def _report_elsewhere(self, place: int) -> None:
        if place not in self._elsewhere:
            self._elsewhere.add(place)
            self.notify(place, "warned", "another process is running it; waiting for that after all other jobs")


def _run_here(queue: _Queue) -> None:
    while queue.waiting and not queue.should_stop():
        place = queue.take()
        if place is not None:
            queue.settle(place, run_job(queue.jobs[place], partial(queue.notify, place), queue.should_stop))
        elif queue.waiting:
            time.sleep(POLL_S)


class _WorkerPool:
    """Worker processes; each runs one job after another."""

    def __init__(self, queue: _Queue, parallel: int, max_workers: int) -> None:
        self._queue, self._parallel, self._max_workers = queue, parallel, max_workers
        self._busy: dict[Connection, _Worker] = {}
        self._idle: list[_Worker] = []

    def run(self) -> None:
        queue = self._queue
        try:
            while self._busy or (queue.waiting and not queue.should_stop()):
                if queue.should_stop():
                    self._ask_to_stop()
                else:
                    self._start_jobs()
                for pipe in wait(list(self._busy), POLL_S):
                    self._receive(pipe)
        except BaseException:
            self._ask_to_stop()
            while self._busy:
                for pipe in wait(list(self._busy)):
                    self._receive(pipe, handle=False)
            raise
        finally:
            for worker in self._busy.values():  # left only after a second interrupt, which does not wait for rounds
                worker.process.kill()
            workers = [*self._idle, *self._busy.values()]
            for worker in workers:
                worker.pipe.close()  # ends the process
            for worker in workers:
                worker.process.join()

    def _start_jobs(self) -> None:
        while len(self._busy) < self._parallel and (place := self._queue.take()) is not None:
            worker = self._idle.pop() if self._idle else _Worker()
            worker.begin(place, self._queue.jobs[place], self._max_workers)
            self._busy[worker.pipe] = worker

    def _ask_to_stop(self) -> None:
        for worker in self._busy.values():
            worker.ask_to_stop()

    def _receive(self, pipe: Any, handle: bool = True) -> None:
        """Receives one event from a worker; passes it on unless `handle` is False."""
        worker = self._busy[pipe]
        try:
            event, details = pipe.recv()
        except (EOFError, OSError):
            event, details = ENDED, worker.death_error()
        if event == ENDED:
            del self._busy[pipe]
            if worker.is_alive:
                self._idle.append(worker)
        if not handle:
            return
        if event == ENDED:
            self._queue.settle(worker.place, details)
        else:
            self._queue.notify(worker.place, event, details)


class _Worker:
    """The parent's handle on a worker process. Each worker has its own pipe to the parent.

    A queue or an event shared by all workers could stay locked if a process were killed at the wrong moment.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        # The process inherits the block. Ctrl-C reaches all processes of a terminal; only this one handles it, and the
        # other would print a traceback if it came while Python starts.
        resource_tracker.ensure_running()  # starting it unblocks these signals, so it must run before they are blocked
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with _without_script():
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        self.is_alive, self._was_asked = True, False

    def begin(self, place: int, job: Job, max_workers: int) -> None:
        self.place, self._job = place, job
        with suppress(OSError):  # the process has died; `_WorkerPool._receive` will notice
            self.pipe.send((job, max_workers))

    def ask_to_stop(self) -> None:
        """Asks the worker to stop after the current round, with everything saved."""
        if not self._was_asked:
            self._was_asked = True
            with suppress(OSError):
                self.pipe.send(None)

    def death_error(self) -> RunError:
        """The error that explains why the process died."""
        self.is_alive = False
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        hint = "; perhaps memory ran out" if code == -signal.SIGKILL else ""
        return RunError(f"{self._job.folder}: the run's process {how}{hint}. The last checkpoint is intact.")


@contextmanager
def _without_script() -> Iterator[None]:
    """Keeps a new process from importing the caller's script, which would run it again from its first line.

    A worker needs nothing of it: what exists in this process only is run here.
    """
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _work(pipe: Connection) -> None:
    """The main loop of a worker process."""
    for number in STOP_SIGNALS:  # may reach the whole process group; only the parent handles them
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def notify(event: str, details: Any) -> None:
        try:
            pipe.send((event, details))
        except OSError:  # the parent has closed the pipe
            os._exit(1)

    with suppress(EOFError):  # the parent has closed the pipe
        while (task := pipe.recv()) is not None:
            # While a worker runs a job, the only message it can receive is the request to stop.
            result = run_job(task[0], notify, pipe.poll, task[1])
            if isinstance(result, Exception) and not isinstance(result, FedalError):  # may not be picklable
                result = RuntimeError("".join(traceback.format_exception(result)))
            notify(ENDED, result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # safe: the last checkpoint is on disk
