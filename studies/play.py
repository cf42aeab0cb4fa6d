"""Plays the runs of a plan that are missing: each a `fedal run` or `fedal resume` in a process of its own.

The run folders are the memory. Whatever is killed, this or a run, the next call goes on from there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedal.campaigns.compare import Job, refuse_other_run
from fedal.errors import ConfigError, Stopped
from fedal.records.folder import RunFolder
from studies.plan import Study

FEDAL = str(Path(sys.executable).with_name("fedal"))
POLL_S = 0.5


@dataclass(frozen=True)
class Task:
    """A run that is not complete, and the words after `fedal` that start it."""

    job: Job
    start: list[str]

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.job.folder)

    @property
    def is_busy(self) -> bool:
        """Another process plays it, perhaps one that outlived the call that started it."""
        if not self.folder.config.exists():
            return False
        try:
            with self.folder.locked():
                return False
        except ConfigError:
            return True

    @property
    def log(self) -> Path:
        return self.job.folder.with_suffix(".log")  # beside the run folder: a new run wants that one empty

    def launch(self) -> subprocess.Popen[bytes]:
        words = ["resume", str(self.job.folder)] if self.folder.config.exists() else self.start
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            # A group of its own: Ctrl-C reaches this process alone, which passes it on once.
            return subprocess.Popen([FEDAL, *words, "--quiet"], stdout=log, stderr=subprocess.STDOUT, process_group=0)


def missing(studies: Iterable[Study], runs: Path, only_seed: int | None = None) -> list[Task]:
    """What is still to be played, in order. Raises ConfigError when a folder holds a run with other settings."""
    tasks = []
    for study in studies:
        for job in study.jobs(runs):
            refuse_other_run(job, {})
            if RunFolder(job.folder).summary.exists() or only_seed not in (None, job.seed):
                continue
            arm = next(arm for arm in study.arms if arm.name == job.method)
            words = ["run", "--config", str(study.config_file), *arm.words, "--seed", str(job.seed)]
            tasks.append(Task(job, [*words, "--set", "workers=1", "--out", str(job.folder)]))
    return tasks


def play(tasks: list[Task], jobs: int) -> list[Task]:
    """Plays the tasks, `jobs` at a time; gives those that failed.

    On SIGTERM or Ctrl-C the runs finish their round and save; then Stopped is raised.
    """
    waiting, failed = list(tasks), []
    running: dict[subprocess.Popen[bytes], Task] = {}
    with _signals_set() as stop:
        while (waiting or running) and not stop.is_set():
            for process in [process for process in running if process.poll() is not None]:
                ended = running.pop(process)
                if not _tell_end(ended, process.returncode):
                    failed.append(ended)
            while len(running) < jobs and (task := _next_free(waiting)):
                waiting.remove(task)
                print(f"{_name(task)}: {'goes on' if task.folder.config.exists() else 'starts'}", flush=True)
                running[task.launch()] = task
            stop.wait(POLL_S)
        for process in running:
            process.send_signal(signal.SIGINT)
        for process, task in running.items():
            _tell_end(task, process.wait())
    if stop.is_set():
        raise Stopped("stopped; what is finished is kept. The same command goes on.")
    return failed


@contextmanager
def _signals_set() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set."""
    event = threading.Event()
    former = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _next_free(waiting: list[Task]) -> Task | None:
    """The first task that nobody plays. Those that another process has completed meanwhile are dropped."""
    waiting[:] = [task for task in waiting if not task.folder.summary.exists()]
    return next((task for task in waiting if not task.is_busy), None)


def _name(task: Task) -> str:
    return "/".join(task.job.folder.parts[-3:])


def _tell_end(task: Task, code: int) -> bool:
    """Says how a run ended, in its own last words; whether it is complete."""
    complete = task.folder.summary.exists()
    lines = [line for line in task.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    words = lines[0] if complete and lines else " ".join(lines[-3:])
    print(f"{_name(task)}: {'' if complete else f'ended with exit code {code}: '}{words}", flush=True)
    return complete
