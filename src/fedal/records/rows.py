"""The rows of metrics.jsonl and clients.jsonl, with one schema for simulated and deployed runs.

docs/architecture.md explains every key. Keys without a value are left out: a server has no test data, and a simulation
has no incarnations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def over_clients(name: str, values: Sequence[float], worst: str = "min", share: float = 1.0) -> Row:
    """Mean, standard deviation and the worst value over clients; of a loss, the worst is the maximum.

    If the clients are a `share` of all, drawn without replacement, also the standard error of the mean over all:
    s / sqrt(n) * sqrt(1 - share), with s the deviation with n - 1 in its denominator. One client tells no error.
    """
    extreme = np.max if worst == "max" else np.min
    row = {
        name: float(np.mean(values)),
        f"{name}_std": float(np.std(values)),
        f"{name}_{worst}": float(extreme(values)),
    }
    if share < 1 and len(values) > 1:
        row[f"{name}_error"] = float(np.std(values, ddof=1) * np.sqrt((1 - share) / len(values)))
    return row


def is_recorded(t: int, tau: int, every: int) -> bool:
    """Whether round t is evaluated: it contains a multiple of `every` iterations, rounded up to the end of a round."""
    return (t + 1) * tau // every > t * tau // every


class Record:
    """The files of a folder. They are only appended to, and truncated to the checkpoint's lengths on resume.

    `cohorts` says that only some clients take part in each round: participation.jsonl then names them.
    """

    def __init__(
        self,
        folder: RunFolder,
        lengths: Mapping[str, int],
        lost: Callable[[str], None] | None = None,
        *,
        cohorts: bool = False,
    ) -> None:
        wanted = {"metrics": folder.metrics, "clients": folder.clients}
        if cohorts:
            wanted["participation"] = folder.participation
        self._files: dict[str, RecordFile] = {}
        try:
            for name, path in wanted.items():
                self._files[name] = RecordFile(path, lengths.get(name, 0), lost)
        except BaseException:
            self.close()
            raise

    def took_part(self, t: int, present: Sequence[str]) -> None:
        """Records the clients of round t, whether or not the round is evaluated."""
        if "participation" in self._files:
            self._files["participation"].append({"round": t, "clients": list(present)})

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
        self._files["metrics"].append(row)
        for client, known in clients.items():
            sent = {"up_bytes": wire.up_bytes[client], "down_bytes": wire.down_bytes[client]}
            took_part = {"final": moment.final, "participated": client in present}
            self._files["clients"].append({**moment.row(), "client": client, **known, **took_part, **sent})
        return row

    def sync(self) -> dict[str, int]:
        """Syncs all files; returns their lengths on disk."""
        return {name: file.sync() for name, file in self._files.items()}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
