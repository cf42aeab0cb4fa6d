"""Callbacks for tests: one that notes what it is told, and one that asks a run to stop."""

from __future__ import annotations

from typing import Any

import fedal
from fedal.simulate.callback import RunInfo


class Notes(fedal.Callback):
    """Notes every call as (hook, run, details)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, RunInfo, Any]] = []

    def on_start(self, run: RunInfo, iteration: int) -> None:
        self.calls.append(("start", run, iteration))

    def on_round(self, run: RunInfo, iteration: int) -> None:
        self.calls.append(("round", run, iteration))

    def on_evaluation(self, run: RunInfo, row: dict[str, Any]) -> None:
        self.calls.append(("evaluation", run, row))

    def on_checkpoint(self, run: RunInfo, iteration: int) -> None:
        self.calls.append(("checkpoint", run, iteration))

    def on_warning(self, run: RunInfo, text: str) -> None:
        self.calls.append(("warning", run, text))

    def on_end(self, run: RunInfo, error: BaseException | None) -> None:
        self.calls.append(("end", run, error))

    def of(self, hook: str) -> list[Any]:
        return [details for name, _, details in self.calls if name == hook]


class StopAt(Notes):
    """Stops a run after the round that reaches `iteration`."""

    def __init__(self, iteration: int = 1) -> None:
        super().__init__()
        self._iteration = iteration

    def should_stop(self) -> bool:
        return any(done >= self._iteration for done in self.of("round"))
