"""Shows the progress of runs: bars with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from fedal.campaigns.job import Job
from fedal.cli.interrupt import stop_on_request
from fedal.metrics.table import first_column

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def headline(row: dict[str, Any]) -> str:
    """`accuracy 0.594`"""
    shown = first_column(row)
    return f"{shown.metric.words} {row[shown.key]:.3f}"


def headline_line(row: dict[str, Any]) -> str:
    """`iteration 50  accuracy 0.594 ± 0.117 over clients (worst 0.372)  after 2.2 s`"""
    shown = first_column(row)
    return (
        f"iteration {row['iteration']:>5}  {headline(row)} ± {row[f'{shown.key}_std']:.3f} "
        f"over clients (worst {row[shown.worst_key]:.3f}) on {row['test_samples']} test samples"
        f"  {row['seconds']:.1f} s"
    )


class Screen:
    """Shows one or several runs, and holds the user's request to stop."""

    def __init__(self, quiet: bool = False, lines: TextIO | None = None) -> None:
        self._quiet = quiet
        self._lines = lines  # where plain lines go; None: standard output
        self.should_stop = stop_on_request()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lengths: dict[str, int] = {}  # run -> its iterations
        self._warned: set[str] = set()  # what any run of a comparison has warned of: most of it concerns their data

    @contextmanager
    def live(self) -> Iterator[Screen]:
        """Shows bars while the block runs, if standard error is a terminal."""
        if self._quiet or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        name, done, note = map(
            TextColumn, ("{task.description:<18}", "{task.completed}/{task.total}", "{task.fields[note]}")
        )
        columns = (name, BarColumn(), done, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), note)
        with Progress(*columns, console=Console(stderr=True), transient=False) as self._bars:
            try:
                yield self
            finally:
                self._bars = None

    def show(self, name: str, event: str, details: Any) -> None:
        """Shows an event of a run; `Forward` names the events."""
        if event == "warned" and self._bars:
            self._bars.console.print(f"warning: {details}", markup=False)
        elif event == "warned":
            print(f"warning: {details}", file=sys.stderr, flush=True)
        elif event == "recorded" and details["phase"] == "after_global":
            if self._bars:
                self._bars.update(self._tasks[name], note=headline(details))
            # the final row stands for the last iteration
            elif not self._quiet and (details["final"] or details["iteration"] != self._lengths.get(name)):
                print(f"{name:<18} {headline_line(details)}", file=self._lines, flush=True)
        elif event in ("started", "advanced"):
            self._lengths[name] = details[1]
            if self._bars and event == "started":
                self._tasks[name] = self._bars.add_task(name, note="")
            if self._bars:
                self._bars.update(self._tasks[name], completed=details[0], total=details[1])

    def watch(self, job: Job, event: str, details: Any) -> None:
        """The `Watcher` of a comparison: without bars, it shows only each run's end."""
        name = f"{job.name} seed {job.seed}"
        if event == "not applicable":
            self.show(name, "warned", f"{name}: not applicable: {details}")
        elif event == "warned":
            if details not in self._warned:
                self._warned.add(details)
                self.show(name, event, f"{name}: {details}")
        elif event != "recorded" or self._bars or details["final"]:
            self.show(name, event, details)
