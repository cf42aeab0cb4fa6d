"""TensorBoard as a callback: the curves of a run in progress are those of its record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import fedal
from fedal.config import Config
from fedal.errors import FedalError, Stopped
from observers import StopAt

SETTINGS: dict[str, Any] = dict(clients=2, models="mlp-small", rounds=4, tau=2, batch_size=8, eval_every=2)


def curve(logs: Path) -> list[tuple[int, float]]:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: fedal[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = logs.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert "after_global_final/test_accuracy" in events.Tags()["scalars"]
    return [(event.step, round(event.value, 6)) for event in events.Scalars("after_global/test_accuracy")]


def test_the_curves_of_a_stopped_and_resumed_run_hold_every_row_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: fedal[tensorboard]")
    logs = tmp_path / "logs"
    with pytest.raises(Stopped):
        fedal.run(Config(**SETTINGS), tmp_path / "run", callbacks=[fedal.TensorBoard(logs), StopAt(4)])
    run = fedal.resume(tmp_path / "run", callbacks=[fedal.TensorBoard(logs)])
    rows = [row for row in run.metrics if row["phase"] == "after_global" and not row["final"]]
    assert len(rows) == 5
    assert curve(logs) == [(row["iteration"], round(row["test_accuracy"], 6)) for row in rows]


def test_without_tensorboard_the_extra_is_named_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(FedalError, match=r"pip install 'fedal\[tensorboard\]'"):
        fedal.TensorBoard("logs")
