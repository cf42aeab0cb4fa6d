"""A site's own judgement of a run: its accuracy on data that it never trains on, and the state with the best one.

No server can improve this accuracy by what it says. The site decides when to measure it, and what it saves at the end:
the final model, as always, unless that is far below the site's own best; none if even that is far below the model that
the site brought. With `fedal join --keep-best METRIC` it also
saves the model that is best by a metric of its choice, next to the final one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedal.errors import CheckpointError
from fedal.learners.base import State, copied
from fedal.metrics import METRICS, Column
from fedal.records.checkpoint import load_newest, save_checkpoint

MEASUREMENTS = 20  # in a run, at least
WRITE_SHARE = 0.002  # of the time, to write the best state between commits: while one site writes, all wait for it
FAR = 0.2
"""A loss of accuracy that is not an accident. In eight honest runs of FedAL and FedMD on digits (5 clients, alpha 0.1
and 1) no client was ever more than 0.04 below its best. FedAvg with alpha 0.1 brought one client 0.5 below.
"""


def is_far_below(accuracy: float, best: float, samples: int) -> bool:
    """Whether the accuracy has fallen by more than `FAR` and two standard errors of the difference."""
    noise = math.sqrt((best * (1 - best) + accuracy * (1 - accuracy)) / samples)
    return best - accuracy > FAR + 2 * noise


def is_judged(rounds: int, total: int) -> bool:
    """Whether `--keep-best` judges the model after this round: where a simulation evaluates by default."""
    return rounds % max(1, round(total / MEASUREMENTS)) == 0 or rounds == total


class KeptState:
    """The state of a site that is best by one metric, in a folder of its own, so that it outlives the process.

    Of equally good states the earliest is kept, as in a simulation with `keep_best`.
    """

    def __init__(self, folder: Path, metric: str, notify: Callable[[str], None]) -> None:
        self._folder, self._metric, self._notify = folder, METRICS[metric], notify
        self._unwritten: State | None = None
        self._write_after = -math.inf  # on the monotonic clock
        self.rounds = 0
        self.value: float | None = None  # None: never measured
        if found := self._read():
            self.rounds, self.value = found[0], float(found[1][metric])

    def offer(self, rounds: int, value: float, state: Callable[[], State]) -> bool:
        """Keeps the state if it is the best so far; returns whether it is."""
        rank = Column(self._metric).rank
        if self.value is not None and rank(value) <= rank(self.value):
            return False
        self.rounds, self.value = rounds, value
        self._unwritten = copied(state(), "cpu")
        if time.monotonic() >= self._write_after:
            self.write()
        return True

    def write(self) -> None:
        """Writes the best state, if it is newer than the one on disk. A short round must not wait for the disk."""
        if self._unwritten is None:
            return
        began = time.monotonic()
        save_checkpoint(self._folder, self.rounds, {self._metric.name: self.value, "state": self._unwritten})
        self._unwritten, ended = None, time.monotonic()
        self._write_after = ended + (ended - began) / WRITE_SHARE

    def state(self) -> State | None:
        """The best state; None if it cannot be read."""
        if self._unwritten is not None:
            return self._unwritten
        found = self._read()
        return found[1]["state"] if found else None

    def _read(self) -> tuple[int, dict[str, Any]] | None:
        try:
            return load_newest(self._folder, self._notify)
        except CheckpointError as error:
            self._notify(f"warning: {error}")
            return None


class BestState(KeptState):
    """The state with the best accuracy, and when the site measures it, whatever the server does."""

    def __init__(
        self, folder: Path, samples: int, rounds: int, notify: Callable[[str], None], brought: float = 0.0
    ) -> None:
        super().__init__(folder, "accuracy", notify)
        self._samples = samples
        self._interval = max(1, rounds // MEASUREMENTS)
        self._completed = 0
        self._alarmed = False
        self.brought = brought  # the accuracy before the first round

    def is_due(self) -> bool:
        """Counts a completed round; returns whether to measure now: after the first one, and then regularly.

        The site counts by itself: a server that chooses which rounds a site takes part in could skip the others.
        """
        self._completed += 1
        return self._samples > 0 and (self._completed - 1) % self._interval == 0

    def measured(self, rounds: int, accuracy: float, state: Callable[[], State]) -> None:
        """Keeps the state if it is the best so far, and warns if it is far below that, or below the model brought."""
        is_best = self.offer(rounds, accuracy, state)
        is_ruined = self.is_ruined(accuracy)
        if not is_ruined and not self.is_far_above(accuracy):
            self._alarmed = self._alarmed and not is_best
        elif not self._alarmed:
            self._alarmed = True
            better = f"{self.brought:.4f} that it brought" if is_ruined else f"{self.value:.4f} of round {self.rounds}"
            self._notify(
                f"warning: after round {rounds} the accuracy on this site's held-out data is {accuracy:.4f}, far below "
                f"the {better}. The server, or another site, may be at fault. The model of round {self.rounds} is kept "
                f"in {self._folder}."
            )

    def is_ruined(self, accuracy: float) -> bool:
        """Whether the site would be better off with the model that it brought."""
        return self._samples > 0 and is_far_below(accuracy, self.brought, self._samples)

    def is_far_above(self, accuracy: float) -> bool:
        return self.value is not None and is_far_below(accuracy, self.value, self._samples)
