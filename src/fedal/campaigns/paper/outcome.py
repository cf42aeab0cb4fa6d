"""The outcome of reproducing a paper entry: lines with our numbers next to the paper's, as CSV and Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedal import methods
from fedal.campaigns.comparison import MethodRuns
from fedal.campaigns.paper.entries import FIGURE_ONLY, Kind, Number, PaperEntry
from fedal.config import Config
from fedal.durable import write_texts
from fedal.records.differences import interval
from fedal.records.folder import RunFolder
from fedal.records.numbers import partition_text
from fedal.records.statistics import mean, spread
from fedal.records.tables import as_csv, as_markdown

Scale = Literal["small", "full"]

HEADS = ("setting", "what", "ours", "95% interval", "paper", "difference", "spread", "seeds", "steps", "config")
CSV_HEADS = ("setting", "what", "ours", "paper", "difference", "spread", "seeds", "steps", "config", "low", "high")
QUANTITIES: dict[Kind, str] = {
    "variances": "largest variance during the run, mean over clients",
    "outputs": "predicted probability of class 3, mean over clients and the test samples of class 3",
    "data": "effective number of classes (exp of the entropy), mean over clients",
}
ACCURACY = "final test accuracy, mean over clients"


@dataclass(frozen=True)
class TableLine:
    """One line of the table. If there are no values, `reason` says why."""

    setting: str
    what: str  # a method, a loss or a partition
    config: str
    values: tuple[float, ...] = ()  # one per seed
    paper: Number | str = FIGURE_ONLY
    reason: str = ""
    folder: str = ""  # of its runs, relative to the table
    steps: int | None = None  # optimizer steps per client

    @property
    def ours(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1)."""
        return spread(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95% interval of the mean over seeds."""
        return interval(self.values)

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or isinstance(self.paper, str) else self.ours - self.paper[0]

    def cells(self) -> list[str]:
        """The cells of the line as shown, in the order of HEADS."""
        paper = self.paper if isinstance(self.paper, str) else f"{self.paper[0]:g} ± {self.paper[1]:g}"
        return [
            self.setting,
            methods.shown(self.what),
            _shown(self.ours, ".4g") or self.reason,
            "-" if self.interval is None else "{:.3f} to {:.3f}".format(*self.interval),
            paper,
            _shown(self.difference, "+.3f") or "-",
            _shown(self.spread, ".2g") or "-",
            str(len(self.values)),
            _shown(self.steps, ",") or "-",
            self.config,
        ]


def _shown(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


@dataclass
class Outcome:
    """The lines of an entry's table, and the data of its figure."""

    entry: PaperEntry
    scale: Scale
    data: str  # a description of the dataset used
    folder: Path  # for the table and the figure
    lines: list[TableLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: dict[str, list[MethodRuns]] = field(default_factory=dict)  # column -> the rows of its comparison
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # column -> clients x classes
    matrices: dict[tuple[str, str], NDArray[np.float64]] = field(default_factory=dict)  # column, method -> outputs

    @property
    def title(self) -> str:
        size = "the paper's setting" if self.scale == "full" else "a small-scale run, not the paper's setting"
        return f"{self.entry.name} ({self.entry.label}): {self.entry.title}; {size}; on {self.data}"

    @property
    def quantity(self) -> str:
        return QUANTITIES.get(self.entry.kind, ACCURACY)

    @property
    def is_empty(self) -> bool:
        return not any(line.values for line in self.lines)

    def write(self) -> list[Path]:
        """Writes NAME.csv with all digits and NAME.md as shown; returns their paths."""
        RunFolder(self.folder).create()
        name = self.entry.name
        return write_texts(self.folder, {f"{name}.csv": self._csv(), f"{name}.md": self._markdown()})

    def _csv(self) -> str:
        rows = []
        for line in self.lines:
            printed, paper_spread = (line.paper, "") if isinstance(line.paper, str) else line.paper
            numbers = [line.ours, printed, line.difference, line.spread, len(line.values), line.steps]
            rows.append(
                [line.setting, line.what, *numbers, line.config, *(line.interval or (None, None)), paper_spread,
                 line.reason, line.folder, self.data, self.quantity]
            )  # fmt: skip
        return as_csv([*CSV_HEADS, "paper_spread", "reason", "folder", "data", "quantity"], rows)

    def _markdown(self) -> str:
        table = as_markdown(HEADS, [line.cells() for line in self.lines])
        notes = "\n".join(f"- {note}" for note in self.notes)
        return f"# {self.title}\n\nours: {self.quantity}; spread: standard deviation over seeds\n\n{table}\n\n{notes}\n"


def config_text(settings: Mapping[str, Any], method: str | None = None, effective: Collection[float] = ()) -> str:
    """A short description of a line's configuration; length and tau only with a method, which sets tau.

    `effective` are the effective numbers of classes of its runs.
    """
    config = Config(**{**settings, "method": method or "local"})
    partition = partition_text(str(config.partition), config.alpha, effective)
    models = config.models if isinstance(config.models, str) else " and ".join(config.models)
    parts = [config.dataset, f"{len(config.client_names)} clients", partition, f"models {models}"]
    parts += [f"|P| {config.public_size}"]
    if method:
        parts += [f"{config.total_rounds * config.tau} iterations", f"tau {config.tau}"]
    return ", ".join(parts)
