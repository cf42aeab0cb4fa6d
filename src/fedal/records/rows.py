"""The rows of metrics.jsonl and clients.jsonl: one schema, whether a run or a server writes them.

docs/architecture.md explains every key. What somebody cannot know is left out: a server has no test data, and a
simulation has no incarnations.
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
    """When something was measured."""

    round: int
    iteration: int
    phase: str = "after_global"
    final: bool = False

    def row(self) -> Row:
        return {"round": self.round, "iteration": self.iteration, "phase": self.phase}


def over_clients(name: str, values: Sequence[float]) -> Row:
    """Mean, spread and lowest of what was measured of every client."""
    return {name: float(np.mean(values)), f"{name}_std": float(np.std(values)), f"{name}_min": float(np.min(values))}


def is_recorded(t: int, tau: int, every: int) -> bool:
    """Whether an evaluation falls due in round t: a multiple of `every` iterations, rounded up to the round's end."""
    return (t + 1) * tau // every > t * tau // every


class Record:
    """Both files of a folder, only ever appended to, and cut back to known lengths on resume."""

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
        """Appends the row of the whole federation and one per client; gives the former.

        `measured` are the numbers that tables use, `extra` all others; `clients` has what is known of each.
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
        """The lengths that are safely on disk."""
        return {"metrics": self._metrics.sync(), "clients": self._clients.sync()}

    def close(self) -> None:
        self._metrics.close()
        self._clients.close()
