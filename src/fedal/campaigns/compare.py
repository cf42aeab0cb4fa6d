"""Compares methods over seeds under one protocol: tables with means, single runs and differences, and one plot.

Every run has its own folder `OUT/METHOD/seed-S`. An interrupted comparison resumes; adding methods or seeds runs only
the new ones, and the tables keep those that the folder already holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedal import methods as known_methods
from fedal.campaigns.comparison import Comparison, MethodRuns
from fedal.campaigns.comparison_folder import earlier_runs, method_folder, refuse_clashes, refuse_other_content
from fedal.campaigns.given import Given
from fedal.campaigns.job import Job, Watcher, refuse_other_runs, refuse_small_clients
from fedal.campaigns.observed import ObservedJobs
from fedal.campaigns.pool import JobOutcome, run_jobs
from fedal.config import Config, unknown_setting
from fedal.errors import ConfigError, NotApplicableError
from fedal.metrics.table import column
from fedal.records.folder import RunFolder
from fedal.records.run import Run
from fedal.simulate.callback import Callback
from fedal.simulate.prepare import GivenData, GivenPublic, given_data, given_public
from fedal.user_code import named_code

if TYPE_CHECKING:
    from fedal.simulate.staged import CustomModels


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, and the reasons why some methods have none."""

    path: Path
    seeds: tuple[int, ...]
    jobs: Mapping[str, Sequence[Job]]  # by method
    not_applicable: Mapping[str, str]
    earlier: Sequence[Run] = ()  # finished runs in the folder that are not among the jobs
    metric: str = ""  # what is compared; empty: the headline of the runs

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
        comparison = Comparison(self.path, self.seeds, rows, comparability_notes(configs), self.metric)
        comparison.write()
        return comparison


def compare(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    out: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    data: GivenData = None,
    public: GivenPublic = None,
    models: CustomModels | Callable[[int], CustomModels] | None = None,
    metric: str = "",
    jobs: int = 0,
    watch: Watcher = lambda job, event, details: None,
    should_stop: Callable[[], bool] = lambda: False,
    callbacks: Sequence[Callback] = (),
) -> Comparison:
    """Runs or resumes all runs, up to `jobs` in parallel (0: one per core), and writes the tables.

    `settings` are those of `Config`; an option that only some of the methods have applies to those methods. `data`,
    `public` and `models` are those of `fedal.run`. All seeds start from the weights of the given models; to vary them,
    give a function seed -> models. `metric` is what is compared, such as "pr_auc" or "own_validation_pr_auc"; default:
    the headline of the runs. Runs with such models, or with registered methods, share this process. `callbacks`
    observe all runs, from this process.
    """
    observed, given = ObservedJobs(callbacks, watch, should_stop), _given(settings or {}, data, public, models)
    plan = plan_comparison(methods, seeds, Path(out), dict(settings or {}), given=given, metric=metric)
    parallel = _parallel_runs(plan, jobs)
    with observed.until_the_end():
        outcomes = run_jobs(
            plan.all_jobs, parallel, watch=observed.watch, should_stop=observed.should_stop, ended=observed.ended
        )
    return plan.conclude(outcomes)


def _given(
    settings: Mapping[str, Any],
    data: GivenData,
    public: GivenPublic,
    models: CustomModels | Callable[[int], CustomModels] | None,
) -> Given:
    """The objects passed in Python, read once for all runs."""
    if data is None and public is None:
        return Given(models=models)
    config = Config(method="local", **{name: settings[name] for name in ("clients", "schema_file") if name in settings})
    found = given_data(config, data)
    return Given(found, given_public(config, public, found), models)


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
    metric: str = "",
) -> ComparisonPlan:
    """Plans one job per method and seed; checks all configs and folders before the first run starts.

    A job is named after its method, followed by `label`, if any.
    """
    refuse_other_content(path)
    settings = recording(settings, metric)
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
    return ComparisonPlan(path, chosen, jobs, not_applicable, earlier, metric)


def recording(settings: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """The settings, with all metrics recorded if one is asked for and they do not say which; raises ConfigError."""
    if not metric:
        return settings
    asked = column(metric)
    if asked.data in ("validation", "own_validation") and not settings.get(asked.data):
        raise ConfigError(f"--metric {metric}: there are no such data. Try --set {asked.data}=0.2.")
    needs_more = asked.metric.name != "accuracy" and "metrics" not in settings
    return {**settings, "metrics": "all"} if needs_more else settings


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
