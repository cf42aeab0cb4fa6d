"""Exports the rows of run folders to TensorBoard: one run per folder, every number of a row under its phase."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedal.errors import FedalError
from fedal.report.collect import Record, collect

NOT_PLOTTED = ("round", "iteration", "final", "test_samples")


def mirror(folders: Sequence[Path], logs: Path) -> int:
    """Writes event files below `logs`, with steps in iterations and times in seconds; returns the number of runs."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise FedalError("--tensorboard needs the package tensorboard. Run: pip install 'fedal[tensorboard]'") from None

    records = collect(folders).records
    for index, record in enumerate(records):
        writer = SummaryWriter(logs / f"{index:03}-{safe_name(record.method)}-seed-{record.seed}")
        _write(record, writer)
        writer.close()
    return len(records)


def safe_name(text: str) -> str:
    """A name from a run folder, made safe as a single component of a path."""
    return re.sub(r"[^A-Za-z0-9_+]+", "-", text)[:60] or "unnamed"


def _write(record: Record, writer: Any) -> None:
    for row in record.rows:
        prefix = f"{safe_name(row['phase'])}{'_final' * row['final']}"
        time = row.get("seconds", math.nan)
        seconds = time if math.isfinite(time) else 0.0
        for key, value in row.items():
            if isinstance(value, float) and key not in NOT_PLOTTED:
                writer.add_scalar(f"{prefix}/{key}", value, int(row["iteration"]), walltime=seconds)
