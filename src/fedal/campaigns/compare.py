"""Compares methods over seeds under one protocol: tables with means, single runs and differences, and one plot.

Every run has its own folder `OUT/METHOD/seed-S`. An interrupted comparison resumes; adding methods or seeds runs only
the new ones, and the tables keep those that the folder already holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedal import methods as known_methods
from fedal.campaigns.comparison import Comparison, MethodRuns
from fedal.campaigns.comparison_folder import earlier_runs, method_folder, refuse_clashes, refuse_other_content
from fedal.campaigns.given import Given
from fedal.campaigns.job import Job, Watcher, refuse_other_runs, refuse_small_clients
from fedal.campaigns.observed import ObservedJobs
from fedal.campaigns.pool import JobOutcome, run_jobs
from fedal.config import Config, unknown_setting
from fedal.data.dataset import Dataset
from fedal.errors import ConfigError, NotApplicableError
from fedal.records.folder import RunFolder
from fedal.records.run import Run
from fedal.simulate.callback import Callback
from fedal.user_code import named_code

if TYPE_CHECKING:
    from fedal.simulate.assemble import CustomModels


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, and the reasons why some methods have none."""

    path: Path
    seeds: tuple[int, ...]
    jobs: Mapping[str, Sequence[Job]]  # by method
    not_applicable: Mapping[str, str]
    earlier: Sequence[Run] = ()  # finished runs in the folder that are not among the jobs

    @property
    def all_jobs(self) -> list[Job]:
        return [job for jobs in self.jobs.values() for job in jobs]

    def conclude(self, outcomes: Sequence[JobOutcome]) -> Comparison:
        """The comparison that results from the outcomes of `all_jobs`; also writes its tables."""
        rows, ended = [], iter(outcomes)
        for name, jobs in self.jobs.items():
            found = [next(ended) for _ in jobs]
            reasons = [outcome.not_applicable for outcome in found if outcome.not_applicable]
            runs = [outcome.run for outcome in found if outcome.run is not None]
            runs += [run for run in self.earlier if run.config.method == name]
            runs.sort(key=lambda run: run.config.seed)
            rows.append(MethodRuns(name, runs, reasons[-1] if reasons else self.not_applicable.get(name)))
        others = dict.fromkeys(run.config.method for run in self.earlier if run.config.method not in self.jobs)
        rows += [MethodRuns(name, [r for r in self.earlier if r.config.method == name], asked=False) for name in others]
        configs = {row.method: row.runs[0].config for row in rows if row.runs}
        comparison = Comparison(self.path, self.seeds, rows, comparability_notes(configs))
        comparison.write()
        return comparison


def compare(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    out: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    data: Dataset | None = None,
    public: NDArray[np.float32] | None = None,
    models: CustomModels | Callable[[int], CustomModels] | None = None,
    jobs: int = 0,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
    callbacks: Sequence[Callback] = (),
) -> Comparison:
    """Runs or resumes all runs, up to `jobs` in parallel (0: one per core), and writes the tables.

    `settings` are those of `Config`; an option that only some of the methods have applies to those methods. `data`,
    `public` and `models` are those of `fedal.run`. All seeds start from the weights of the given models; to vary them,
    give a function seed -> models. Runs with such models, or with registered methods, share this process. `callbacks`
    observe all runs, from this process.
    """
    observed = ObservedJobs(callbacks, watch, should_stop)
    plan = plan_comparison(methods, seeds, Path(out), dict(settings or {}), given=Given(data, public, models))
    parallel = _parallel_runs(plan, jobs)
    with observed.until_the_end():
        outcomes = run_jobs(
            plan.all_jobs, parallel, watch=observed.watch, should_stop=observed.should_stop, ended=observed.ended
        )
    return plan.conclude(outcomes)


def _parallel_runs(plan: ComparisonPlan, jobs: int) -> int:
    """How many runs may be parallel: 1 if they use objects that only this process has."""
    here = [f'method "{name}"' for name in plan.jobs if name in known_methods._registered]
    here += ["models" for job in plan.all_jobs[:1] if job.given.models is not None]
    if here and jobs > 1:
        raise ConfigError(
            f"jobs = {jobs}: {here[0]} passed in Python cannot leave this process. Leave jobs out, or name the code "
            "package.module:object."
        )
    return 1 if here else jobs


def plan_comparison(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    path: Path,
    settings: Mapping[str, Any],
    label: str = "",
    given: Given = Given(),  # noqa: B008 - frozen
) -> ComparisonPlan:
    """Plans one job per method and seed; checks all configs and folders before the first run starts.

    A job is named after its method, followed by `label`, if any.
    """
    refuse_other_content(path)
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
    refuse_clashes(path, objects)
    jobs: dict[str, list[Job]] = {name: [] for name in objects}
    not_applicable = {}
    for name, method in objects.items():
        mine = {key: value for key, value in options.items() if key in method.options.model_fields}
        try:
            for seed in chosen:
                config = Config(**{**shared, **mine, "method": name, "seed": seed})
                folder = method_folder(path, name) / f"seed-{seed}"
                jobs[name].append(Job(f"{name} {label}".strip(), seed, config, folder, given))
        except ConfigError as error:
            if not everything or not isinstance(error, NotApplicableError):
                raise
            not_applicable[name] = str(error)
    planned = [job for each in jobs.values() for job in each]
    code = {*objects, *named_code(shared), *(name for job in planned for name in named_code(job.config.deciding()))}
    earlier = earlier_runs(path, {job.folder for job in planned}, code)
    refuse_other_runs([*planned, *(_as_job(run, shared, jobs, given) for run in earlier)])
    refuse_small_clients(planned)
    RunFolder(path).create()
    return ComparisonPlan(path, chosen, jobs, not_applicable, earlier)


def _as_job(run: Run, shared: Mapping[str, Any], jobs: Mapping[str, Sequence[Job]], given: Given) -> Job:
    """The job that this call's settings make of an earlier run; a method that is not asked for keeps its options."""
    name, seed = run.config.method, run.config.seed
    if mine := jobs.get(name):
        config = mine[0].config.with_(seed=seed)
    else:
        options = run.config.options.model_dump(exclude_none=True)
        config = Config(**{**shared, "method": name, "seed": seed, "options": options})
    return Job(name, seed, config, run.path, given)


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
