"""Plays the jobs of a campaign in order, several at a time: compare, tune, paper and the studies of docs/results.

The run folders are the memory: what is finished is not played again, what was begun goes on, and what another process
plays at the moment is left to it. Side by side, every run has a process: small nets are bound by Python, which threads
of one process share.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from fedal.campaigns.job import Answer, Job, Watcher, run_job
from fedal.errors import ConfigError, FedalError, FolderInUseError, RunError, Stopped
from fedal.machine import available_cores
from fedal.records.run import Run

POLL_S = 0.2
ENDED = "ended"  # the last news of a job; its details are an Answer


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: with a finished run, or with the reason why there is none."""

    job: Job
    run: Run | None = None
    not_applicable: str = ""
    failure: Exception | None = None


def raise_failure(outcome: JobOutcome) -> None:
    """For a campaign that is worth nothing without all of its runs."""
    if outcome.failure is not None:
        raise outcome.failure


def run_jobs(
    jobs: Sequence[Job],
    at_once: int = 0,
    *,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
    ended: Callable[[JobOutcome], None] = raise_failure,
    always_apart: bool = False,
) -> list[JobOutcome]:
    """Plays or completes all jobs, `at_once` at a time (0: one per core); gives their outcomes in the order of `jobs`.

    Each outcome is also given to `ended` as soon as it is known. When that raises, and when `should_stop` says so, the
    other runs finish their round and save; the latter ends in Stopped. A single run at a time is played in this
    process, unless `always_apart` says that what kills a run must not kill the campaign.
    """
    cores = available_cores()
    queue = _Queue(jobs, watch, should_stop, ended)
    queue.settle_finished()
    at_once = min(at_once or cores, len(queue.waiting))
    if at_once > 1 or always_apart:
        _Crew(queue, at_once, max(1, cores // max(1, at_once))).run()
    else:
        _run_here(queue)
    if queue.waiting:
        raise Stopped("stopped; what is finished is kept. Type the same command again to continue.")
    return [queue.outcomes[place] for place in range(len(jobs))]


class _Queue:
    """Which jobs wait for somebody to play them, and how the others ended. A job is known by its place in the plan."""

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
        """The first job that nobody plays; those that another process has finished meanwhile are settled."""
        self.settle_finished()
        for place in self.waiting:
            if not self.jobs[place].is_played_elsewhere:
                self.waiting.remove(place)
                return place
            self._tell_elsewhere(place)
        return None

    def settle(self, place: int, answer: Answer) -> None:
        """Takes note of how a job that was taken ended; one that did not end waits again."""
        job = self.jobs[place]
        if isinstance(answer, ConfigError) and job.is_finished:  # another process was faster by a whole run
            answer = None
        if isinstance(answer, Stopped | FolderInUseError):
            self.waiting = sorted([*self.waiting, place])
            if isinstance(answer, Stopped):
                self._is_stopped = True
            else:  # another process was faster by a moment
                self._tell_elsewhere(place)
            return
        if isinstance(answer, Exception):
            outcome = JobOutcome(job, failure=answer)
        elif answer is not None:
            outcome = JobOutcome(job, not_applicable=answer)
            self._watch(job, "not applicable", answer)
        else:
            run = Run(job.folder, trust=True)
            outcome = JobOutcome(job, run)
            self._watch(job, "finished", run.final)
        self.outcomes[place] = outcome
        self._ended(outcome)

    def tell(self, place: int, event: str, details: Any) -> None:
        self._watch(self.jobs[place], event, details)

    def _tell_elsewhere(self, place: int) -> None:
        if place not in self._elsewhere:
            self._elsewhere.add(place)
            self.tell(place, "warned", "another process plays it at the moment; it is waited for after all others")


def _run_here(queue: _Queue) -> None:
    while queue.waiting and not queue.should_stop():
        place = queue.take()
        if place is not None:
            queue.settle(place, run_job(queue.jobs[place], partial(queue.tell, place), queue.should_stop))
        elif queue.waiting:
            time.sleep(POLL_S)


class _Crew:
    """Worker processes; each plays one job after another."""

    def __init__(self, queue: _Queue, at_once: int, most_workers: int) -> None:
        self._queue, self._at_once, self._most_workers = queue, at_once, most_workers
        self._busy: dict[Connection, _Worker] = {}
        self._idle: list[_Worker] = []

    def run(self) -> None:
        queue = self._queue
        try:
            while self._busy or (queue.waiting and not queue.should_stop()):
                if queue.should_stop():
                    self._ask_to_stop()
                else:
                    self._hand_out()
                for pipe in wait(list(self._busy), POLL_S):
                    self._listen(pipe)
        except BaseException:
            self._ask_to_stop()
            while self._busy:
                for pipe in wait(list(self._busy)):
                    self._listen(pipe, heeded=False)
            raise
        finally:
            for worker in self._busy.values():  # somebody cannot wait for the end of its round
                worker.process.kill()
            crew = [*self._idle, *self._busy.values()]
            for worker in crew:
                worker.pipe.close()  # sends it home
            for worker in crew:
                worker.process.join()

    def _hand_out(self) -> None:
        while len(self._busy) < self._at_once and (place := self._queue.take()) is not None:
            worker = self._idle.pop() if self._idle else _Worker()
            worker.begin(place, self._queue.jobs[place], self._most_workers)
            self._busy[worker.pipe] = worker

    def _ask_to_stop(self) -> None:
        for worker in self._busy.values():
            worker.ask_to_stop()

    def _listen(self, pipe: Any, heeded: bool = True) -> None:
        """One piece of news; whether it has consequences."""
        worker = self._busy[pipe]
        try:
            event, details = pipe.recv()
        except (EOFError, OSError):
            event, details = ENDED, worker.mourn()
        if event == ENDED:
            del self._busy[pipe]
            if worker.is_alive:
                self._idle.append(worker)
        if not heeded:
            return
        if event == ENDED:
            self._queue.settle(worker.place, details)
        else:
            self._queue.tell(worker.place, event, details)


class _Worker:
    """A process, seen from this one. What they say to each other goes through a pipe that only the two have.

    Something shared by all, a queue or an event, would stay locked when a process is killed at the wrong moment.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        self.process.start()
        theirs.close()
        self.is_alive, self._was_asked = True, False

    def begin(self, place: int, job: Job, most_workers: int) -> None:
        self.place, self._job = place, job
        with suppress(OSError):  # it has died: whoever listens to it will notice
            self.pipe.send((job, most_workers))

    def ask_to_stop(self) -> None:
        """After its round, with everything saved."""
        if not self._was_asked:
            self._was_asked = True
            with suppress(OSError):
                self.pipe.send(None)

    def mourn(self) -> RunError:
        """Why the process ended without a word."""
        self.is_alive = False
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        hint = "; perhaps memory ran out" if code == -signal.SIGKILL else ""
        return RunError(f"{self._job.folder}: the process of the run {how}{hint}. The last checkpoint stands.")


def _work(pipe: Connection) -> None:
    """The life of a worker process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach the whole group; only the parent answers them
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(event: str, details: Any) -> None:
        try:
            pipe.send((event, details))
        except OSError:  # nobody listens any more
            os._exit(1)

    with suppress(EOFError):  # sent home
        while (task := pipe.recv()) is not None:
            # Nothing is said to a worker at work but that it shall stop.
            answer = run_job(task[0], tell, pipe.poll, task[1])
            if isinstance(answer, Exception) and not isinstance(answer, FedalError):  # may not survive the journey
                answer = RuntimeError("".join(traceback.format_exception(answer)))
            tell(ENDED, answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # the last checkpoint stands
