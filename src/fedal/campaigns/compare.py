"""Compares methods over seeds under one protocol: a table with mean ± std, as CSV, and one plot.

Every run has its own folder `OUT/METHOD/seed-S`. An interrupted comparison resumes; adding methods or seeds runs only
the new ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedal import methods as known_methods
from fedal.campaigns.job import Job, Watcher, refuse_other_runs, refuse_small_clients
from fedal.campaigns.observed import ObservedJobs
from fedal.campaigns.pool import JobOutcome, run_jobs
from fedal.config import Config, unknown_setting
from fedal.durable import write_atomically
from fedal.errors import ConfigError, NotApplicableError
from fedal.messages import in_words
from fedal.records.folder import RunFolder
from fedal.records.numbers import NONE, partition_text, with_spread
from fedal.records.run import Run
from fedal.records.statistics import Row, Seeds, mean
from fedal.records.tables import as_csv
from fedal.simulate.callback import Callback


@dataclass
class MethodRuns(Seeds):
    """One method in the table: its finished runs, or why there are none."""

    method: str
    runs: list[Run] = field(default_factory=list)
    not_applicable: str | None = None

    @property
    def rows_by_seed(self) -> dict[int, list[Row]]:
        return {run.config.seed: run.metrics for run in self.runs}


CSV_NUMBERS: dict[str, Callable[[MethodRuns], object]] = {  # column -> its value, for a method that has runs
    "test_accuracy_mean": lambda row: row.mean("test_accuracy"),
    "test_accuracy_spread": lambda row: row.spread("test_accuracy"),
    "worst_client_mean": lambda row: row.mean("test_accuracy_min"),
    "iterations": lambda row: row.runs[0].final["iteration"],
    "up_bytes": lambda row: row.runs[0].final["up_bytes"],
    "down_bytes": lambda row: row.runs[0].final["down_bytes"],
    "seconds_mean": lambda row: round(row.mean("seconds"), 3),
    "effective_classes_mean": lambda row: round(mean(run.effective_classes for run in row.runs), 4),
}


@dataclass(repr=False)
class Comparison:
    """The rows of the table, in the order of the methods requested."""

    path: Path
    seeds: tuple[int, ...]
    rows: list[MethodRuns]
    notes: list[str]  # why rows may not be comparable

    @property
    def partition(self) -> str:
        """How the data were divided, in words; the methods of one seed share a partition."""
        runs = next((row.runs for row in self.rows if row.runs), [])
        if not runs:
            return ""
        config = runs[0].config
        return partition_text(str(config.partition), config.alpha, [run.effective_classes for run in runs])

    def __repr__(self) -> str:
        """A table: a line per method with the mean ± std of its final accuracy over its seeds."""
        cells = [("method", "test accuracy", "seeds")]
        for row in self.rows:
            finals = row.finals("test_accuracy")
            why = textwrap.shorten(f"not applicable: {row.not_applicable}", 80, placeholder=" ...")
            accuracy, seeds = (with_spread(finals.values()), str(len(finals))) if finals else (NONE, why)
            cells.append((row.method, accuracy, seeds))
        widths = [max(len(line[column]) for line in cells) for column in (0, 1)]
        lines = [f"  {name:<{widths[0]}}  {accuracy:<{widths[1]}}  {seeds}" for name, accuracy, seeds in cells]
        return "\n".join([f"Comparison({str(self.path)!r})", *lines])

    def write_csv(self) -> None:
        rows = []
        for row in self.rows:
            method = known_methods.get(row.method)
            numbers = [number(row) if row.runs else "" for number in CSV_NUMBERS.values()]
            words = [method.black_box, in_words(method.reveals), row.not_applicable or ""]
            rows.append([row.method, len(row.runs), *numbers, *words])
        heads = ["method", "seeds", *CSV_NUMBERS, "black_box", "reveals", "not_applicable"]
        write_atomically(self.path / "table.csv", as_csv(heads, rows).encode())


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, and the reasons why some methods have none."""

    path: Path
    seeds: tuple[int, ...]
    jobs: Mapping[str, Sequence[Job]]  # by method
    not_applicable: Mapping[str, str]

    @property
    def all_jobs(self) -> list[Job]:
        return [job for jobs in self.jobs.values() for job in jobs]

    def conclude(self, outcomes: Sequence[JobOutcome]) -> Comparison:
        """The comparison that results from the outcomes of `all_jobs`; also writes table.csv."""
        rows, ended = [], iter(outcomes)
        for name, jobs in self.jobs.items():
            found = [next(ended) for _ in jobs]
            reasons = [outcome.not_applicable for outcome in found if outcome.not_applicable]
            runs = [outcome.run for outcome in found if outcome.run is not None]
            runs.sort(key=lambda run: run.config.seed)
            rows.append(MethodRuns(name, runs, reasons[-1] if reasons else self.not_applicable.get(name)))
        configs = {name: jobs[-1].config for name, jobs in self.jobs.items() if jobs}
        comparison = Comparison(self.path, self.seeds, rows, comparability_notes(configs))
        comparison.write_csv()
        return comparison


def compare(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    out: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    jobs: int = 0,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
    callbacks: Sequence[Callback] = (),
) -> Comparison:
    """Runs or resumes all runs, up to `jobs` in parallel (0: one per core), and writes table.csv.

    `settings` are those of `Config`; an option that only some of the methods have applies to those methods.
    `callbacks` observe all runs, from this process.
    """
    observed = ObservedJobs(callbacks, watch, should_stop)
    plan = plan_comparison(methods, seeds, Path(out), dict(settings or {}))
    with observed.until_the_end():
        outcomes = run_jobs(
            plan.all_jobs, jobs, watch=observed.watch, should_stop=observed.should_stop, ended=observed.ended
        )
    return plan.conclude(outcomes)


def plan_comparison(
    methods: Sequence[str], seeds: int | Sequence[int], path: Path, settings: Mapping[str, Any], label: str = ""
) -> ComparisonPlan:
    """Plans one job per method and seed; checks all configs and folders before the first run starts.

    A job is named after its method, followed by `label`, if any.
    """
    everything = list(methods) == ["all"]
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    names = known_methods.names() if everything else dict.fromkeys(methods)
    objects = {name: known_methods.get(name) for name in names}
    shared = {key: value for key, value in settings.items() if key in Config.model_fields}
    options = {key: value for key, value in settings.items() if key not in Config.model_fields}
    known = [key for method in objects.values() for key in method.options.model_fields]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ConfigError(
            "\n".join(unknown_setting(key, [*Config.model_fields, *known], list(objects)) for key in unknown)
        )
    jobs: dict[str, list[Job]] = {name: [] for name in objects}
    not_applicable = {}
    for name, method in objects.items():
        mine = {key: value for key, value in options.items() if key in method.options.model_fields}
        try:
            for seed in chosen:
                config = Config(**{**shared, **mine, "method": name, "seed": seed})
                jobs[name].append(Job(f"{name} {label}".strip(), seed, config, path / name / f"seed-{seed}"))
        except ConfigError as error:
            if not everything or not isinstance(error, NotApplicableError):
                raise
            not_applicable[name] = str(error)
    plan = ComparisonPlan(path, chosen, jobs, not_applicable)
    refuse_other_runs(plan.all_jobs)
    refuse_small_clients(plan.all_jobs)
    RunFolder(path).create()
    return plan


def comparability_notes(configs: Mapping[str, Config]) -> list[str]:
    """What limits a comparison of the rows: different schedules, amounts of work or kinds of model."""
    tau = {name: config.tau for name, config in configs.items()}
    work = {
        name: config.method_object().local_steps(config.options) * config.total_rounds
        for name, config in configs.items()
    }
    models = {name: config.method_object().evaluates for name, config in configs.items()}
    compared: dict[str, Mapping[str, object]] = {
        "the methods have different tau": tau,
        "the methods do different amounts of local work (private batches per client)": work,
    }
    if "server" in models.values():
        compared["the accuracy column mixes client models with server models"] = models
    return [
        f"{what}: {', '.join(f'{name} {value}' for name, value in values.items())}."
        for what, values in compared.items()
        if len(set(values.values())) > 1
    ]
