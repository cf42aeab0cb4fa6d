"""How a run is shown while it goes: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedal.campaigns.job import Job


def accuracy_line(row: dict[str, Any]) -> str:
    """`iteration 50  accuracy 0.594 ± 0.117 over clients (worst 0.372)  after 2.2 s`"""
    return (
        f"iteration {row['iteration']:>5}  accuracy {row['test_accuracy']:.3f} ± {row['test_accuracy_std']:.3f} "
        f"over clients (worst {row['test_accuracy_min']:.3f}) on {row['test_samples']} test samples"
        f"  {row['seconds']:.1f} s"
    )


class Screen:
    """Shows one or several runs."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    @contextmanager
    def live(self) -> Iterator[Screen]:
        """Bars while the block runs, if there is a terminal to draw them on."""
        if self._quiet or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<18}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=False) as self._bars:
            try:
                yield self
            finally:
                self._bars = None

    def started(self, name: str, done: int, total: int) -> None:
        if self._bars:
            self._tasks[name] = self._bars.add_task(name, completed=done, total=total, note="")

    def advanced(self, name: str, done: int, total: int) -> None:
        if self._bars:
            self._bars.update(self._tasks[name], completed=done, total=total)

    def recorded(self, name: str, row: dict[str, Any]) -> None:
        if row["phase"] != "after_global":
            return
        if self._bars:
            self._bars.update(self._tasks[name], note=f"accuracy {row['test_accuracy']:.3f}")
        elif not self._quiet:
            print(f"{name:<18} {accuracy_line(row)}", flush=True)

    def warned(self, text: str) -> None:
        if self._bars:
            self._bars.console.print(f"warning: {text}", markup=False)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def watch(self, job: Job, event: str, details: Any) -> None:
        """The `Watcher` of a comparison."""
        name = f"{job.name} seed {job.seed}"
        if event == "started":
            self.started(name, *details)
        elif event == "advanced":
            self.advanced(name, *details)
        elif event == "recorded" and (self._bars or details["final"]):
            self.recorded(name, details)
        elif event == "warned":
            self.warned(f"{name}: {details}")
        elif event == "not applicable":
            self.warned(f"{name}: not applicable: {details}")
