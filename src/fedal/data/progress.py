"""How a download tells a person what it is doing: one line per event, and a bar while bytes arrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    def say(self, line: str) -> None:
        """Something happened: worth one line."""

    def advance(self, file: str, done_bytes: int, total_bytes: int | None) -> None:
        """So much of this file is here; called often."""


class Silent:
    def say(self, line: str) -> None: ...
    def advance(self, file: str, done_bytes: int, total_bytes: int | None) -> None: ...


@contextmanager
def on_terminal() -> Iterator[Progress]:
    """Bars on a terminal's stderr; plain lines where stderr goes elsewhere."""
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

    with bars:
        yield Terminal()
