"""The result of a comparison: one row per method over its seeds, the differences between them, and the files of both.

A comparison shows what its folder holds: runs of earlier calls stay in its tables, marked as not asked for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from fedal import methods as known_methods
from fedal.config.revealed import is_black_box, revealed
from fedal.durable import write_texts
from fedal.errors import ConfigError
from fedal.metrics.table import Column, column, first_column
from fedal.records.differences import Difference, correct
from fedal.records.numbers import NONE, count, duration, partition_text, share, size, with_spread
from fedal.records.run import Run
from fedal.records.statistics import Row, Seeds, mean
from fedal.records.tables import as_csv

ACCURACY = "test_accuracy"
SECOND = column("balanced_accuracy")  # next to a headline for very unequal classes
EARLIER = " *"  # after the name of a method that was not asked for


@dataclass
class MethodRuns(Seeds):
    """One method in the table: its finished runs, or why there are none."""

    method: str
    runs: list[Run] = field(default_factory=list)
    not_applicable: str | None = None
    asked: bool = True  # False: only earlier calls with this folder asked for the method

    @property
    def rows_by_seed(self) -> dict[int, list[Row]]:
        return {run.config.seed: run.metrics for run in self.runs}

    @property
    def partition(self) -> str | None:
        """The partition of its runs; None without a run."""
        return next((run.config.partition for run in self.runs), None)

    @property
    def shown_name(self) -> str:
        return known_methods.shown(self.method) + EARLIER * (not self.asked)


def steps_of(run: Run) -> int:
    """Optimizer steps of a client that takes part in every round."""
    return run.config.method_object().steps(run.config.options, run.config.total_rounds)


CSV_NUMBERS: dict[str, Callable[[MethodRuns], object]] = {  # column -> its value, for a method that has runs
    "test_accuracy_mean": lambda row: row.mean(ACCURACY),
    "test_accuracy_spread": lambda row: row.spread(ACCURACY),
    "worst_client_mean": lambda row: row.mean("test_accuracy_min"),
    "iterations": lambda row: row.runs[0].final["iteration"],
    "up_bytes": lambda row: row.runs[0].final["up_bytes"],
    "down_bytes": lambda row: row.runs[0].final["down_bytes"],
    "seconds_mean": lambda row: round(row.mean("seconds"), 3),
    "effective_classes_mean": lambda row: round(mean(run.effective_classes for run in row.runs), 4),
    "steps": lambda row: steps_of(row.runs[0]),
}
RUN_NUMBERS: dict[str, Callable[[Run], object]] = {  # column of runs.csv -> its value
    ACCURACY: lambda run: run.final[ACCURACY],
    "worst_client": lambda run: run.final["test_accuracy_min"],
    "iterations": lambda run: run.final["iteration"],
    "steps": steps_of,
    "up_bytes": lambda run: run.final["up_bytes"],
    "down_bytes": lambda run: run.final["down_bytes"],
    "seconds": lambda run: run.final["seconds"],
    "effective_classes": lambda run: run.effective_classes,
}


@dataclass(repr=False)
class Comparison:
    """The rows of the table: the methods asked for in their order, then those of earlier calls with this folder."""

    path: Path
    seeds: tuple[int, ...]  # asked for
    rows: list[MethodRuns]
    notes: list[str]  # why rows may not be comparable
    metric: str = ""  # what is compared; empty: the headline of the runs

    @cached_property
    def shown(self) -> Column:
        """What the table and the differences show; raises ConfigError where a finished run has not recorded it."""
        if not self.metric:
            headlines = {first_column(rows[0]) for row in self.rows for rows in row.rows_by_seed.values() if rows}
            return headlines.pop() if len(headlines) == 1 else column("accuracy")
        found = column(self.metric)
        for run in (run for row in self.rows for run in row.runs):
            if found.key not in run.final:
                raise ConfigError(
                    f"{run.path} has no {found.key}: it is not defined for its data, or was not recorded. "
                    f"Choose another --metric, or another --out with --set metrics=all."
                )
        return found

    @property
    def beside(self) -> dict[str, str]:
        """heading -> column, for what stands next to the headline: a second metric, and data like a client's own."""
        runs = [run for row in self.rows for run in row.runs]
        own = [Column(self.shown.metric, data) for data in ("own_validation", "own_test")]
        second = [SECOND] * (self.shown.key == "test_pr_auc")
        candidates = [*second, *(own if self.shown.data == "test" else [])]
        return {each.words: each.key for each in candidates if runs and all(each.key in run.final for run in runs)}

    def __repr__(self) -> str:
        """A table: a line per method with the mean ± std of its final accuracy over its seeds."""
        cells = [("method", self.shown.words, "seeds")]
        for row in self.rows:
            finals = row.finals(self.shown.key)
            why = textwrap.shorten(f"not applicable: {row.not_applicable}", 80, placeholder=" ...")
            accuracy, seeds = (with_spread(finals.values()), str(len(finals))) if finals else (NONE, why)
            cells.append((row.shown_name, accuracy, seeds))
        widths = [max(len(line[column]) for line in cells) for column in (0, 1)]
        lines = [f"  {name:<{widths[0]}}  {accuracy:<{widths[1]}}  {seeds}" for name, accuracy, seeds in cells]
        return "\n".join([f"Comparison({str(self.path)!r})", *lines])

    @property
    def partition(self) -> str:
        """How the data were divided, in words; the methods of one seed share a partition."""
        runs = next((row.runs for row in self.rows if row.runs), [])
        if not runs:
            return ""
        config = runs[0].config
        return partition_text(str(config.partition), config.alpha, [run.effective_classes for run in runs])

    @property
    def asked(self) -> list[MethodRuns]:
        """The rows of this call alone: the methods and seeds that it asked for."""
        return [
            MethodRuns(row.method, [run for run in row.runs if run.config.seed in self.seeds], row.not_applicable)
            for row in self.rows
            if row.asked
        ]

    @property
    def seed_counts(self) -> set[int]:
        """How many seeds the methods with runs have."""
        return {len(row.runs) for row in self.rows if row.runs}

    def table(self) -> list[dict[str, str]]:
        """One row per method as shown, heading -> cell. `seeds` is shown only if the methods differ in it."""
        return [self._shown(row) for row in self.rows]

    def _shown(self, row: MethodRuns) -> dict[str, str]:
        if not row.runs:
            return {"method": row.shown_name, self.shown.words: f"not applicable: {row.not_applicable}"}
        final, clients = row.runs[0].final, len(row.runs[0].config.client_names)
        return {
            "method": row.shown_name,
            **({"seeds": str(len(row.runs))} if len(self.seed_counts) > 1 else {}),
            self.shown.words: with_spread(row.finals(self.shown.key).values()),
            "worst client": share(row.mean(self.shown.worst_key)),
            **{words: with_spread(row.finals(key).values()) for words, key in self.beside.items()},
            "steps": count(steps_of(row.runs[0])),
            "up / client": size(final["up_bytes"] / clients),
            "down / client": size(final["down_bytes"] / clients),
            "time": duration(row.mean("seconds")),
            "reveals": revealed(known_methods.get(row.method).reveals, row.partition),
        }

    @property
    def baseline(self) -> str:
        """The method that the others are compared with: the first that has runs. Empty if none has."""
        return next((row.method for row in self.rows if row.runs), "")

    def differences(self, baseline: str = "") -> dict[str, Difference]:
        """method -> its paired difference from the baseline, with p values corrected over all of them (Holm)."""
        rows = {row.method: row for row in self.rows if row.runs}
        first = rows.get(baseline or self.baseline)
        if first is None:
            raise ConfigError(f'there is no finished run of "{baseline}" to compare with. Expected: {", ".join(rows)}.')
        found = {name: row.difference(first, self.shown.key) for name, row in rows.items() if row is not first}
        return correct({name: each for name, each in found.items() if each is not None})

    def clear_best(self) -> str:
        """The method with the best mean, if it is significantly better than each other one; else empty.

        It is chosen by its results, so the p values are corrected over all pairs of methods.
        """
        rows = [row for row in self.rows if row.runs]
        key, better = self.shown.key, "higher" if self.shown.metric.higher_is_better else "lower"
        ranked = sorted(rows, key=lambda row: -self.shown.rank(row.mean(key)))
        found = {(a.method, b.method): a.difference(b, key) for a, b in combinations(ranked, 2)}
        tested = correct({pair: each for pair, each in found.items() if each is not None})
        against = [tested.get((ranked[0].method, row.method)) for row in ranked[1:]]
        is_clear = bool(against) and all(each is not None and each.verdict == better for each in against)
        return ranked[0].method if is_clear else ""

    def write(self) -> None:
        """Writes table.csv with the means, runs.csv with each seed, and differences.csv."""
        texts = {"table.csv": self._table_csv(), "runs.csv": self._runs_csv()}
        write_texts(self.path, {**texts, "differences.csv": self._differences_csv()})

    @property
    def _others(self) -> list[str]:
        """The columns of the table besides accuracy: the headline, its worst client, and what stands beside it."""
        shown = [self.shown.key, self.shown.worst_key] if self.shown.key != ACCURACY else []
        return [*shown, *self.beside.values()]

    def _table_csv(self) -> str:
        rows, others = [], self._others
        for row in self.rows:
            method = known_methods.get(row.method)
            numbers = [number(row) if row.runs else "" for number in CSV_NUMBERS.values()]
            numbers += [what(key) if row.runs else "" for key in others for what in (row.mean, row.spread)]
            leak = method.reveals
            words = [
                is_black_box(leak, row.partition),
                revealed(leak, row.partition),
                row.not_applicable or "",
                row.asked,
            ]
            rows.append([row.method, len(row.runs), *numbers, *words])
        heads = [*CSV_NUMBERS, *(f"{key}_{what}" for key in others for what in ("mean", "spread"))]
        return as_csv(["method", "seeds", *heads, "black_box", "reveals", "not_applicable", "asked"], rows)

    def _runs_csv(self) -> str:
        rows = [
            [row.method, run.config.seed, *(number(run) for number in RUN_NUMBERS.values()),
             *(run.final[key] for key in self._others), row.asked and run.config.seed in self.seeds]
            for row in self.rows
            for run in row.runs
        ]  # fmt: skip
        return as_csv(["method", "seed", *RUN_NUMBERS, *self._others, "asked"], rows)

    def _differences_csv(self) -> str:
        """One row per pair and seed; what belongs to the pair is repeated in each of its rows."""
        rows = [
            [method, self.baseline, seed, value, found.seeds, found.mean, found.low, found.high, found.p_value,
             found.corrected, found.verdict]
            for method, found in (self.differences() if self.baseline else {}).items()
            for seed, value in found.by_seed.items()
        ]  # fmt: skip
        heads = ["method", "baseline", "seed", "difference", "seeds", "difference_mean", "interval_low"]
        return as_csv([*heads, "interval_high", "p", "p_holm", "verdict"], rows)
