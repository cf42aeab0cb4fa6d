"""Searches settings, with grids stage by stage or with Optuna. Every trial is a run folder that holds its score.

The folders hold all state of a search: a killed search resumes without repeating finished trials, and an extended one
runs only the new trials.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedal import methods
from fedal.campaigns.compare import recording
from fedal.campaigns.job import Job, Watcher, refuse_other_runs
from fedal.campaigns.objective import HELD_OUT, OBJECTIVES, SHARE, Objective, evaluate, with_held_out
from fedal.campaigns.pool import JobOutcome, raise_failure, run_jobs
from fedal.config import Config, merge_settings, parse_assignments
from fedal.durable import write_texts
from fedal.errors import ConfigError, FedalError, NonFiniteError, did_you_mean
from fedal.metrics.table import METRICS, Metric
from fedal.records.folder import write_json
from fedal.records.run import Run
from fedal.records.tables import as_csv

Grid = Mapping[str, Sequence[Any]]
Direction = Literal["maximize", "minimize"]

PAPER_ROUNDS = 120
PAPER_STAGES: tuple[Grid, ...] = (  # paper, Hyper-parameter settings
    {"lr": (1e-4, 1e-3, 1e-2, 1e-1), "tau": (1, 5, 10, 15, 20)},
    {"discriminator_lr": (1e-4, 1e-3, 1e-2, 1e-1), "discriminator_temperature": (1.0, 2.0, 4.0, 8.0)},
)
SCORE = "score.json"
SAMPLE_BATCH = 4
"""Trials that the sampler chooses before it receives their scores, so up to this many can run in parallel.

A constant, not the number of parallel jobs, so that a search tries and finds the same settings on any machine. A
larger batch would keep more cores busy but choose worse.
"""


@dataclass(frozen=True)
class Range:
    """A range for the sampler: integers are drawn uniformly, other numbers on a logarithmic scale."""

    low: float
    high: float


@dataclass(frozen=True)
class Trial:
    """The settings tried and their score, or the reason why the trial failed."""

    values: Mapping[str, Any]
    config: Config
    folder: Path
    score: float | None = None
    failure: str = ""


@dataclass
class Tuning:
    """All trials of a search, in the order in which they were planned."""

    path: Path
    objective: Objective
    trials: list[Trial]
    metric: str = ""  # what is measured; empty: the headline of the trials

    @property
    def measured(self) -> Metric:
        """The metric of the scores."""
        if self.metric:
            return METRICS[self.metric]
        ended = [trial for trial in self.trials if trial.score is not None]
        return Run(ended[0].folder, trust=True).headline.metric if ended else METRICS["accuracy"]

    @property
    def in_words(self) -> str:
        """What a score is: `accuracy of the final models on the test set, mean over clients`."""
        return f"{self.measured.words} of the final models on {OBJECTIVES[self.objective]}, mean over clients"

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first; ties keep their order, and failed trials come last."""
        better = 1.0 if self.measured.higher_is_better else -1.0
        return sorted(
            self.trials, key=lambda trial: -math.inf if trial.score is None else better * trial.score, reverse=True
        )

    @property
    def best(self) -> Trial:
        first = self.ranked[0]
        if first.score is None:
            raise FedalError(f"all {len(self.trials)} trials failed; the first: {first.failure}")
        return first

    def write(self) -> list[Path]:
        """Writes best.toml, a config to run, and trials.csv; returns their paths.

        The data that scored the trials have done their work: best.toml holds none out, so its run trains on all.
        """
        best, config = self.best, self.best.config
        note = "Its length is the length of a trial."
        if self.objective in HELD_OUT:
            share = getattr(config, self.objective)
            note += f"\n# Trials had {self.objective} = {share:g}; this run trains on all the data."
            config = config.with_(**{self.objective: 0.0})
        text = (
            f"# The best of {len(self.trials)} trials of `fedal tune`: {best.score:.4f},\n"
            f"# {self.in_words}.\n# {note}\n{config.to_toml()}"
        )
        keys = list(dict.fromkeys(key for trial in self.trials for key in trial.values))
        rows = [
            [*(trial.values.get(key, "") for key in keys), trial.score, trial.failure,
             trial.folder.relative_to(self.path)]
            for trial in self.trials
        ]  # fmt: skip
        table = as_csv([*keys, self.objective, "failure", "folder"], rows)
        return write_texts(self.path, {"best.toml": text, "trials.csv": table})


@dataclass
class Search:
    """Runs trials of one method, up to `jobs` in parallel (0: one per core); reuses those of an earlier process."""

    settings: dict[str, Any]
    out: Path
    objective: Objective = "validation"
    metric: str = ""
    jobs: int = 0
    watch: Watcher = lambda job, event, details: None
    should_stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.metric and self.metric not in METRICS:
            raise ConfigError(
                f"--metric {self.metric}: {did_you_mean(self.metric, METRICS)}Expected one of {', '.join(METRICS)}; "
                "--objective says on which data."
            )
        self.settings = dict(recording(with_held_out(self.settings, self.objective), self.metric))
        self.tuning = Tuning(self.out, self.objective, [], self.metric)

    def grids(self, stages: Sequence[Grid]) -> Tuning:
        """Tries all combinations of each stage in turn; a stage starts from the best trial so far."""
        for stage in stages:
            kept = dict(self.tuning.best.values) if self.tuning.trials else {}
            combinations = itertools.product(*stage.values())
            self._run([{**kept, **dict(zip(stage, each, strict=True))} for each in combinations])
        return self.tuning

    def sample(self, space: Mapping[str, Range | Sequence[Any]], trials: int) -> Tuning:
        """Runs `trials` trials, chosen by Optuna's tree-structured Parzen estimator.

        Each choice depends only on the seed and the scores so far: a resumed search repeats the choices of the earlier
        process and finds those trials finished.
        """
        sampler = Sampler(space, int(self.settings.get("seed", 0)), self._direction)
        while (done := len(self.tuning.trials)) < trials:
            self._run([sampler.ask() for _ in range(min(SAMPLE_BATCH, trials - done))])
            for trial in self.tuning.trials[done:]:
                sampler.tell(trial)
        return self.tuning

    @property
    def _direction(self) -> Direction:
        """Whether a sampler looks for high or low scores; a headline that is chosen from the data is never a loss."""
        listed = Config(**self.settings).metrics
        first = self.metric or (listed[0] if isinstance(listed, tuple) else "accuracy")
        return "maximize" if METRICS[first].higher_is_better else "minimize"

    def _run(self, planned: Sequence[Mapping[str, Any]]) -> None:
        """Checks these settings, runs the missing trials and appends all of them, scored, in this order."""
        jobs = [self._job(values) for values in planned]
        refuse_other_runs(jobs)
        unscored = {job.name: job for job in jobs if not (job.folder / SCORE).exists()}  # a sampler may repeat itself
        missing = list(unscored.values())
        run_jobs(missing, self.jobs, watch=self.watch, should_stop=self.should_stop, ended=self._note_score)
        for values, job in zip(planned, jobs, strict=True):
            self.tuning.trials.append(self._scored(values, job))

    def _job(self, values: Mapping[str, Any]) -> Job:
        """The job of a trial, named after its values."""
        config = Config(**merge_settings(self.settings, values))
        if self.objective in HELD_OUT and not getattr(config, self.objective):
            raise ConfigError(f"{self.objective} = 0: a trial without such data has no score. Try {SHARE:g}.")
        name = ",".join(f"{key}={value}" for key, value in values.items())
        return Job(name, config.seed, config, self.tuning.path / "trials" / name)

    def _note_score(self, outcome: JobOutcome) -> None:
        """Writes the score of an ended run into its folder. Divergence, perhaps from too large steps, is a result."""
        found: dict[str, Any] = {"objective": self.tuning.objective, "metric": self.metric, "score": None}
        if outcome.run is not None:
            found["score"] = evaluate(outcome.run, self.tuning.objective, self.metric)
        elif isinstance(outcome.failure, NonFiniteError):
            found["failure"] = str(outcome.failure)
        else:
            raise_failure(outcome)
            raise ConfigError(outcome.not_applicable)
        write_json(outcome.job.folder / SCORE, found)

    def _scored(self, values: Mapping[str, Any], job: Job) -> Trial:
        """The trial with the score from its folder; a score for another objective is computed again."""
        found = json.loads((job.folder / SCORE).read_bytes())
        is_other = found["objective"] != self.tuning.objective or found.get("metric", "") != self.metric
        if is_other and found["score"] is not None:
            found["score"] = evaluate(Run(job.folder, trust=True), self.tuning.objective, self.metric)
        return Trial(values, job.config, job.folder, found["score"], found.get("failure", ""))


def paper_stages(method: str) -> list[Grid]:
    """The paper's two stages; a method without a discriminator has only the first."""
    known = [*Config.model_fields, *methods.get(method).options.model_fields]
    return [stage for stage in PAPER_STAGES if all(key in known for key in stage)]


class Sampler:
    """Optuna's sampler, with its study in memory only: the run folders are the lasting state."""

    def __init__(
        self, space: Mapping[str, Range | Sequence[Any]], seed: int, direction: Direction = "maximize"
    ) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError("--trials needs Optuna. Type: pip install 'fedal[tune]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._distributions = {key: self._distribution(values) for key, values in space.items()}
        self._study = optuna.create_study(direction=direction, sampler=optuna.samplers.TPESampler(seed=seed))

    def ask(self) -> dict[str, Any]:
        """The settings to try next, rounded to four digits to keep the config readable."""
        values = self._study.ask(self._distributions).params
        return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}

    def tell(self, trial: Trial) -> None:
        state = self._optuna.trial.TrialState.FAIL if trial.score is None else self._optuna.trial.TrialState.COMPLETE
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=state, value=trial.score, params=dict(trial.values), distributions=self._distributions
            )
        )

    def _distribution(self, values: Range | Sequence[Any]) -> Any:
        kinds = self._optuna.distributions
        if not isinstance(values, Range):
            return kinds.CategoricalDistribution(values)
        if isinstance(values.low, int) and isinstance(values.high, int):
            return kinds.IntDistribution(values.low, values.high)
        return kinds.FloatDistribution(values.low, values.high, log=True)


def parse_space(grids: Sequence[str], ranges: Sequence[str]) -> dict[str, Range | list[Any]]:
    """Parses `lr=1e-3,1e-2` into a list of values and `tau=1:20` into a range."""
    space: dict[str, Range | list[Any]] = {}
    for word in grids:
        key, texts = _split(word, "--grid", "lr=1e-3,1e-2")
        space[key] = [_value(key, text) for text in texts.split(",")]
    for word in ranges:
        key, texts = _split(word, "--range", "lr=1e-4:1e-1")
        low, _, high = texts.partition(":")
        ends = _value(key, low), _value(key, high)
        if not all(isinstance(end, int | float) for end in ends) or not 0 < ends[0] < ends[1]:
            raise ConfigError(f"--range {word}: expected two numbers, 0 < low < high, as in --range lr=1e-4:1e-1.")
        space[key] = Range(*ends)
    return space


def _split(word: str, option: str, example: str) -> tuple[str, str]:
    key, equals, texts = word.partition("=")
    if not equals or not key.strip() or not texts.strip():
        raise ConfigError(f"{option} {word}: expected values, for instance {option} {example}.")
    return key.strip().removeprefix("options."), texts


def _value(key: str, text: str) -> Any:
    return next(iter(parse_assignments([f"{key}={text.strip()}"]).values()))
