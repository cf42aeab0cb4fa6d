"""Shows the progress of a download: one line per event, and a bar while bytes arrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol


class Progress(Protocol):
    def say(self, line: str) -> None:
        """Prints one line about an event."""

    def advance(self, file: str, done_bytes: int, total_bytes: int | None) -> None:
        """Reports how many bytes of this file have arrived; called often."""


class Silent:
    def say(self, line: str) -> None: ...
    def advance(self, file: str, done_bytes: int, total_bytes: int | None) -> None: ...


@contextmanager
def on_terminal() -> Iterator[Progress]:
    """Progress bars on stderr if it is a terminal, else plain lines."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars = Bars(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)

    class Terminal:
        tasks: dict[str, TaskID] = {}  # noqa: RUF012 (one Terminal per call)

        def say(self, line: str) -> None:
            console.print(line, markup=False)

        def advance(self, file: str, done_bytes: int, total_bytes: int | None) -> None:
            if file not in self.tasks:
                self.tasks[file] = bars.add_task(file, total=total_bytes)
            bars.update(self.tasks[file], completed=done_bytes, total=total_bytes)

    with bars if console.is_terminal else nullcontext():  # older rich ends hidden bars with an empty line
        yield Terminal()
