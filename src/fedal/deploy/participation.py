"""Who took part in which exchange: enough to replay a deployed run in one process, bit for bit.

`participation.jsonl` has one line per round in which a site was missing, and one per round that was lost with policy
`continue`, in which no site goes back. `missed` maps a site to the first exchange that it missed; it sat out the rest.
`lost` is the number of exchanges that were answered before the round was lost. Rounds without a line had all sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedal.durable import RecordFile
from fedal.records.folder import RunFolder


class Participation:
    """The file of one server. It is truncated to the checkpoint's length on recovery, as the record is."""

    def __init__(self, folder: RunFolder, length: int, log: Callable[..., None]) -> None:
        def lost(text: str) -> None:  # needed for a replay only
            log("warning", text=f"{text} The run cannot be replayed.")

        self._file = RecordFile(folder.participation, length, lost)

    def completed(self, t: int, missed: Mapping[str, int]) -> None:
        if missed:
            self._file.append({"round": t, "missed": dict(missed)})

    def lost(self, t: int, missed: Mapping[str, int], answered: int) -> None:
        self._file.append({"round": t, "missed": dict(missed), "lost": answered})

    def sync(self) -> int:
        return self._file.sync()

    def close(self) -> None:
        self._file.close()
