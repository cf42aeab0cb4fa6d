"""Code that observes a run: `fedal.Callback`, given to `fedal.run`, `fedal.resume` or `fedal.compare`.

A callback observes and never steers: each hook gets copies, so no callback can change a number of the run. It can ask
the run to stop. If a hook raises an exception, the run warns, drops that callback and continues: hours of training
must not end because a dashboard is unreachable.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedal.config import Config
from fedal.errors import ConfigError

Row = dict[str, Any]


@dataclass(frozen=True)
class RunInfo:
    """Which run a hook is told about."""

    path: Path  # the run folder; `fedal.load_run(run.path)` reads it
    config: Config

    @property
    def iterations(self) -> int:
        """The planned length of the run."""
        return self.config.total_rounds * self.config.tau


class Callback:
    """Base class of observers: override the hooks you need.

    All hooks run in the thread that called fedal, between two steps of training. In a comparison, one callback observes
    several runs, perhaps in parallel: `run` says which.
    """

    def on_start(self, run: RunInfo, iteration: int) -> None:
        """Training starts; `iteration` is 0, or where a resumed run continues."""

    def on_round(self, run: RunInfo, iteration: int) -> None:
        """A round is complete, `iteration` iterations since the start of the run."""

    def on_evaluation(self, run: RunInfo, row: Row) -> None:
        """A row was written to metrics.jsonl (docs/architecture.md lists its keys); `row["final"]` marks the last."""

    def on_checkpoint(self, run: RunInfo, iteration: int) -> None:
        """The state after `iteration` is on disk: a run that is killed resumes from here."""

    def on_warning(self, run: RunInfo, text: str) -> None:
        """Something deserves attention, but the run continues."""

    def on_end(self, run: RunInfo, error: BaseException | None) -> None:
        """The last call after every `on_start`; `error` is None if the run is complete, else why it ended."""

    def should_stop(self) -> bool:
        """Asked after every round: True saves the round and ends with `fedal.errors.Stopped`."""
        return False


class Callbacks:
    """Calls the hooks of several callbacks, in their order, and drops one that fails."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        given: Sequence[object] = callbacks  # whatever a user passed
        for each in given:
            if not isinstance(each, Callback):
                kind = each.__name__ if isinstance(each, type) else type(each).__name__
                raise ConfigError(
                    f"callbacks: {kind} is not an object of a subclass of fedal.Callback. "
                    f"Write `class {kind}(fedal.Callback)` and pass an object of it, as in callbacks=[{kind}()]."
                )
        self._callbacks = list(callbacks)

    def call(self, hook: str, run: RunInfo, details: Any) -> None:
        """Calls `hook` of every callback; a row is copied for each."""
        for each in list(self._callbacks):
            given = dict(details) if isinstance(details, dict) else details
            self._guarded(each, hook, run, given)

    def should_stop(self) -> bool:
        """Whether any callback asks to stop."""
        return any(self._guarded(each, "should_stop") for each in list(self._callbacks))

    def _guarded(self, callback: Callback, hook: str, *details: Any) -> Any:
        try:
            return getattr(callback, hook)(*details)
        except Exception as error:
            self._callbacks.remove(callback)
            frame = traceback.extract_tb(error.__traceback__)[-1]
            warnings.warn(
                f"callback {type(callback).__qualname__} failed in {hook} ({type(error).__name__}: {error}; "
                f"{frame.filename}, line {frame.lineno}). It is not called again; the run continues.",
                RuntimeWarning,
                stacklevel=2,
            )
            return None


class Observers:
    """The callbacks of one run."""

    def __init__(self, run: RunInfo, callbacks: Callbacks) -> None:
        self.run, self._callbacks = run, callbacks
        self._has_started = False

    def start(self, iteration: int) -> None:
        """Reports once that training starts: a run may continue several times after lost actors."""
        if not self._has_started:
            self._has_started = True
            self._callbacks.call("on_start", self.run, iteration)

    def round(self, iteration: int) -> None:
        self._callbacks.call("on_round", self.run, iteration)

    def evaluation(self, row: Row) -> None:
        self._callbacks.call("on_evaluation", self.run, row)

    def checkpoint(self, iteration: int) -> None:
        self._callbacks.call("on_checkpoint", self.run, iteration)

    def warning(self, text: str) -> None:
        self._callbacks.call("on_warning", self.run, text)

    def should_stop(self) -> bool:
        return self._callbacks.should_stop()

    def end(self, error: BaseException | None) -> None:
        """Reports how the run ended, once for every start."""
        if self._has_started:
            self._has_started = False
            self._callbacks.call("on_end", self.run, error)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Calls `end` when the block ends, in whatever way."""
        try:
            yield
        except BaseException as error:  # Ctrl-C too
            self.end(error)
            raise
        self.end(None)


class Forward(Callback):
    """Passes everything on as (event, details): to a screen, or through a pipe to another process."""

    def __init__(self, notify: Callable[[str, Any], None], should_stop: Callable[[], bool]) -> None:
        self._notify, self._should_stop = notify, should_stop

    def on_start(self, run: RunInfo, iteration: int) -> None:
        self._notify("started", (iteration, run.iterations))

    def on_round(self, run: RunInfo, iteration: int) -> None:
        self._notify("advanced", (iteration, run.iterations))

    def on_evaluation(self, run: RunInfo, row: Row) -> None:
        self._notify("recorded", row)

    def on_checkpoint(self, run: RunInfo, iteration: int) -> None:
        self._notify("saved", iteration)

    def on_warning(self, run: RunInfo, text: str) -> None:
        self._notify("warned", text)

    def should_stop(self) -> bool:
        return self._should_stop()
