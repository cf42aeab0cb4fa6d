"""Callbacks that observe the runs of a campaign: what a pool reports about jobs, as calls of their hooks.

The runs may be in other processes; the callbacks stay in this one, and each call says which run it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedal.campaigns.job import Job, Watcher
from fedal.campaigns.pool import JobOutcome, raise_failure
from fedal.simulate.callback import Callback, Callbacks, Observers, RunInfo


class ObservedJobs:
    """Stands between a pool and those who watch it, with the watcher and the request to stop of the caller."""

    def __init__(self, callbacks: Sequence[Callback], watch: Watcher, should_stop: Callable[[], bool]) -> None:
        self._callbacks, self._watch, self._should_stop = Callbacks(callbacks), watch, should_stop
        self._observers: dict[Path, Observers] = {}

    def watch(self, job: Job, event: str, details: Any) -> None:
        """Notifies the callbacks, then the watcher."""
        observers = self._of(job)
        if event == "started":
            observers.start(details[0])
        elif event == "advanced":
            observers.round(details[0])
        elif event == "recorded":
            observers.evaluation(details)
        elif event == "saved":
            observers.checkpoint(details)
        elif event == "warned":
            observers.warning(details)
        self._watch(job, event, details)

    def should_stop(self) -> bool:
        return self._should_stop() or self._callbacks.should_stop()

    def ended(self, outcome: JobOutcome) -> None:
        """Reports how a run ended; a failure ends the campaign."""
        self._of(outcome.job).end(outcome.failure)
        raise_failure(outcome)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Reports to runs that are still open why the campaign ended."""
        try:
            yield
        except BaseException as error:
            for observers in self._observers.values():
                observers.end(error)
            raise

    def _of(self, job: Job) -> Observers:
        if job.folder not in self._observers:
            self._observers[job.folder] = Observers(RunInfo(job.folder, job.config), self._callbacks)
        return self._observers[job.folder]
