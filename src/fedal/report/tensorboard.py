"""Rows for TensorBoard, of a run in progress (`TensorBoard`) or of run folders (`mirror`).

Every number of a row is a curve under its phase; steps are iterations, times are seconds of the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedal.errors import FedalError
from fedal.records.statistics import Row
from fedal.report.collect import collect
from fedal.simulate.callback import Callback, RunInfo

NOT_PLOTTED = ("round", "iteration", "final", "test_samples")


class TensorBoard(Callback):
    """Writes the rows of runs below `logs` while they train: `fedal.run(config, callbacks=[TensorBoard("logs")])`."""

    def __init__(self, logs: Path | str) -> None:
        self._logs, self._new_writer = Path(logs), _writer_class("fedal.TensorBoard")
        self._writers: dict[Path, Any] = {}

    def on_start(self, run: RunInfo, iteration: int) -> None:
        """Opens the log of the run; a resumed run replaces what it repeats."""
        name = f"{safe_name(run.config.method)}-seed-{run.config.seed}-{safe_name(run.path.name)}"
        again = {"purge_step": iteration + 1} if iteration else {}
        self._writers[run.path] = self._new_writer(self._logs / name, **again)

    def on_evaluation(self, run: RunInfo, row: Row) -> None:
        _write(row, self._writers[run.path])

    def on_end(self, run: RunInfo, error: BaseException | None) -> None:
        self._writers.pop(run.path).close()


def mirror(folders: Sequence[Path], logs: Path) -> int:
    """Writes the rows of run folders below `logs` and returns how many runs there are."""
    new_writer = _writer_class("--tensorboard")
    records = collect(folders).records
    for index, record in enumerate(records):
        writer = new_writer(logs / f"{index:03}-{safe_name(record.method)}-seed-{record.seed}")
        for row in record.rows:
            _write(row, writer)
        writer.close()
    return len(records)


def safe_name(text: str) -> str:
    """A name from a run folder, made safe as a single component of a path."""
    return re.sub(r"[^A-Za-z0-9_+]+", "-", text)[:60] or "unnamed"


def _writer_class(asked_by: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise FedalError(f"{asked_by} needs the package tensorboard. Run: pip install 'fedal[tensorboard]'") from None
    return SummaryWriter


def _write(row: Row, writer: Any) -> None:
    prefix = f"{safe_name(row['phase'])}{'_final' * row['final']}"
    time = row.get("seconds", math.nan)
    seconds = time if math.isfinite(time) else 0.0
    for key, value in row.items():
        if isinstance(value, float) and key not in NOT_PLOTTED:
            writer.add_scalar(f"{prefix}/{key}", value, int(row["iteration"]), walltime=seconds)
