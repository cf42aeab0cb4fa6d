"""Callbacks: what they are told, in which order, and that they never change a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedal
from fedal.config import Config
from fedal.errors import ConfigError, NonFiniteError, Stopped
from fedal.simulate.callback import RunInfo
from observers import Notes, StopAt

SETTINGS: dict[str, Any] = dict(
    clients=2, models="mlp-small", rounds=3, tau=2, batch_size=8, checkpoint_every=2, eval_every=2, eval_samples=50,
    eval_after_local=False,
)  # fmt: skip
LAST = 6


def outcome(run: fedal.Run) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Rows without times, and weights: what a callback must not change."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.metrics]
    return rows, [path.read_bytes() for path in sorted(run.folder.models.iterdir())]


def test_hooks_are_called_in_order_with_what_they_announce(tmp_path: Path) -> None:
    notes = Notes()
    config = Config(**SETTINGS)
    run = fedal.run(config, tmp_path / "run", callbacks=[notes])
    assert [hook for hook, *_ in notes.calls] == [
        "start", "evaluation", "evaluation", "round", "evaluation", "round", "checkpoint", "evaluation", "round",
        "checkpoint", "evaluation", "end",
    ]  # fmt: skip
    assert notes.of("start") == [0] and notes.of("round") == [2, 4, 6] and notes.of("checkpoint") == [4, 6]
    assert notes.of("evaluation") == run.metrics and notes.of("end") == [None]
    assert {told for _, told, _ in notes.calls} == {RunInfo(tmp_path / "run", config)}
    assert notes.calls[0][1].iterations == LAST and notes.calls[0][1].config.title == "fedal on digits, seed 0"


def test_a_stopped_run_is_told_why_and_its_resume_continues_where_it_was(tmp_path: Path) -> None:
    stop, notes = StopAt(2), Notes()
    with pytest.raises(Stopped):
        fedal.run(Config(**SETTINGS), tmp_path / "run", callbacks=[stop])
    (why,) = stop.of("end")
    assert isinstance(why, Stopped) and stop.of("checkpoint") == [2]
    fedal.resume(tmp_path / "run", callbacks=[notes])
    assert notes.of("start") == [2] and notes.of("round") == [4, 6] and notes.of("end") == [None]


def test_a_run_that_fails_tells_its_callbacks_the_reason(tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(NonFiniteError):
        fedal.run(Config(**SETTINGS | {"lr": 1e30, "rounds": 50}), tmp_path / "run", callbacks=[notes])
    assert [type(error) for error in notes.of("end")] == [NonFiniteError]
    assert notes.calls[-1][0] == "end"


def test_a_callback_that_is_refused_before_the_start_hears_nothing(tmp_path: Path) -> None:
    notes = Notes()
    fedal.run(Config(**SETTINGS), tmp_path / "run")
    with pytest.raises(ConfigError):
        fedal.run(Config(**SETTINGS), tmp_path / "run", callbacks=[notes])
    assert notes.calls == []


@pytest.mark.parametrize("hook", ["on_start", "on_round", "on_evaluation", "on_checkpoint", "on_end", "should_stop"])
def test_a_hook_that_raises_is_named_and_the_run_keeps_its_bits(hook: str, tmp_path: Path) -> None:
    whole = fedal.run(Config(**SETTINGS), tmp_path / "whole")

    def fail(*_: object) -> None:
        calls.append(hook)
        raise ConnectionError("the dashboard is unreachable")

    calls: list[str] = []
    broken = type("Broken", (fedal.Callback,), {hook: fail})()
    notes = Notes()
    with pytest.warns(RuntimeWarning, match=rf"callback Broken failed in {hook} \(ConnectionError: the dashboard is"):
        run = fedal.run(Config(**SETTINGS), tmp_path / "run", callbacks=[broken, notes])
    assert calls == [hook], "it is not called again"
    assert outcome(run) == outcome(whole) and run.is_complete and not run.folder.failure.exists()
    assert notes.of("round") == [2, 4, 6] and notes.of("end") == [None], "the others go on"


def test_a_callback_that_changes_its_row_does_not_change_the_record(tmp_path: Path) -> None:
    class Greedy(fedal.Callback):
        def on_evaluation(self, run: RunInfo, row: dict[str, Any]) -> None:
            row.clear()

    notes = Notes()
    run = fedal.run(Config(**SETTINGS), tmp_path / "run", callbacks=[Greedy(), notes])
    assert outcome(run) == outcome(fedal.run(Config(**SETTINGS), tmp_path / "plain"))
    assert notes.of("evaluation") == run.metrics
    assert '"test_accuracy"' in run.folder.summary.read_text()


@pytest.mark.parametrize("wrong", [Notes, print, "Notes"], ids=["class", "function", "name"])
def test_something_else_than_a_callback_is_refused_before_anything_is_written(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks: \w+ is not an object of a subclass of fedal\.Callback"):
        fedal.run(Config(**SETTINGS), tmp_path / "run", callbacks=[wrong])
    assert not (tmp_path / "run").exists()


COMPARED: dict[str, Any] = {key: value for key, value in SETTINGS.items() if key != "rounds"} | {"iterations": LAST}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_a_comparison_tells_of_which_run_it_speaks(jobs: int, tmp_path: Path) -> None:
    notes = Notes()
    comparison = fedal.compare(["local", "fedmd"], 1, tmp_path, COMPARED, jobs=jobs, callbacks=[notes])
    for row in comparison.rows:
        (run,) = row.runs
        mine = [(hook, details) for hook, told, details in notes.calls if told.path == run.path]
        assert [hook for hook, _ in mine][:1] == ["start"] and mine[-1] == ("end", None)
        assert [details for hook, details in mine if hook == "evaluation"] == run.metrics
        assert [details for hook, details in mine if hook == "checkpoint"][-1] == LAST
    again = Notes()
    fedal.compare(["local", "fedmd"], 1, tmp_path, COMPARED, jobs=jobs, callbacks=[again])
    assert again.calls == [], "finished runs are not run again"


def test_a_callback_can_stop_a_comparison(tmp_path: Path) -> None:
    stop = StopAt(2)
    with pytest.raises(Stopped):
        fedal.compare(["local", "fedmd"], 1, tmp_path, COMPARED, jobs=1, callbacks=[stop])
    assert stop.of("start") == [0] and [type(error) for error in stop.of("end")] == [Stopped]
