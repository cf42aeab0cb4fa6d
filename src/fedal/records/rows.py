"""The rows of metrics.jsonl and clients.jsonl, with one schema for simulated and deployed runs.

docs/architecture.md explains every key. Keys without a value are left out: a server has no test data, and a simulation
has no incarnations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedal.durable import RecordFile
from fedal.records.folder import RunFolder
from fedal.records.statistics import Row
from fedal.wire import Wire


@dataclass(frozen=True)
class Moment:
    """The point in a run at which values were measured."""

    round: int
    iteration: int
    phase: str = "after_global"
    final: bool = False

    def row(self) -> Row:
        return {"round": self.round, "iteration": self.iteration, "phase": self.phase}


def over_clients(name: str, values: Sequence[float]) -> Row:
    """Mean, standard deviation and minimum of a value over clients."""
    return {name: float(np.mean(values)), f"{name}_std": float(np.std(values)), f"{name}_min": float(np.min(values))}


def is_recorded(t: int, tau: int, every: int) -> bool:
    """Whether round t is evaluated: it contains a multiple of `every` iterations, rounded up to the end of a round."""
    return (t + 1) * tau // every > t * tau // every


class Record:
    """Both files of a folder. They are only appended to, and truncated to the checkpoint's lengths on resume."""

    def __init__(self, folder: RunFolder, lengths: Mapping[str, int]) -> None:
        self._metrics = RecordFile(folder.metrics, lengths.get("metrics", 0))
        self._clients = RecordFile(folder.clients, lengths.get("clients", 0))

    def write(
        self,
        moment: Moment,
        wire: Wire,
        present: Sequence[str],
        seconds: float,
        *,
        measured: Mapping[str, Any],
        extra: Mapping[str, Any],
        clients: Mapping[str, Mapping[str, Any]],
    ) -> Row:
        """Appends one row for the whole federation and one per client; returns the federation's row.

        `measured` holds the values that tables use, `extra` all others; `clients` holds the values of each client.
        """
        row = {
            **moment.row(),
            **measured,
            "final": moment.final,
            "up_bytes": wire.up_bytes.total(),
            "down_bytes": wire.down_bytes.total(),
            "participants": len(present),
            **extra,
            "seconds": round(seconds, 3),
        }
        self._metrics.append(row)
        for client, known in clients.items():
            sent = {"up_bytes": wire.up_bytes[client], "down_bytes": wire.down_bytes[client]}
            took_part = {"final": moment.final, "participated": client in present}
            self._clients.append({**moment.row(), "client": client, **known, **took_part, **sent})
        return row

    def sync(self) -> dict[str, int]:
        """Syncs both files; returns their lengths on disk."""
        return {"metrics": self._metrics.sync(), "clients": self._clients.sync()}

    def close(self) -> None:
        self._metrics.close()
        self._clients.close()
