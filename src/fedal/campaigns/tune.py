"""Searches settings: grids stage by stage, or a sampler of Optuna. Every trial is a run folder with its score in it.

The folders are the memory of a search: one that was killed continues its trials and repeats none that is finished, and
one that grows plays only what is new.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedal import methods
from fedal.campaigns.job import Job, Watcher, refuse_other_runs
from fedal.campaigns.pool import JobOutcome, raise_failure, run_jobs
from fedal.config import Config, merge_settings, parse_assignments
from fedal.durable import write_texts
from fedal.errors import ConfigError, FedalError, NonFiniteError
from fedal.records.folder import write_json
from fedal.records.run import Run
from fedal.records.statistics import mean
from fedal.records.tables import as_csv

Objective = Literal["train", "test"]
Grid = Mapping[str, Sequence[Any]]

PAPER_ROUNDS = 120
PAPER_STAGES: tuple[Grid, ...] = (  # paper, Hyper-parameter settings
    {"lr": (1e-4, 1e-3, 1e-2, 1e-1), "tau": (1, 5, 10, 15, 20)},
    {"discriminator_lr": (1e-4, 1e-3, 1e-2, 1e-1), "discriminator_temperature": (1.0, 2.0, 4.0, 8.0)},
)
WORDS: dict[Objective, str] = {
    "train": "accuracy of the final models on their own training data, mean over clients",
    "test": "accuracy of the final models on the test set, mean over clients",
}
SCORE = "score.json"
SAMPLED_AT_ONCE = 4
"""Trials that a sampler chooses before it learns how good they are: so many can be played side by side.

A constant, and not the number of runs at a time: what is tried, and so what is found, is the same on any machine. More
would keep more cores busy and choose worse.
"""


@dataclass(frozen=True)
class Range:
    """Values for a sampler: whole numbers evenly, others on a logarithmic scale."""

    low: float
    high: float


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and how good they are; a trial that failed has a reason instead."""

    values: Mapping[str, Any]
    config: Config
    folder: Path
    score: float | None = None
    failure: str = ""


@dataclass
class Tuning:
    """All trials of a search in the order they were planned."""

    path: Path
    objective: Objective
    trials: list[Trial]

    @property
    def ranked(self) -> list[Trial]:
        """Best first; of equals the earlier one, and those that failed at the end."""
        return sorted(self.trials, key=lambda trial: -1.0 if trial.score is None else trial.score, reverse=True)

    @property
    def best(self) -> Trial:
        first = self.ranked[0]
        if first.score is None:
            raise FedalError(f"all {len(self.trials)} trials failed; the first: {first.failure}")
        return first

    def write(self) -> list[Path]:
        """best.toml, a config to run, and trials.csv."""
        best = self.best
        text = (
            f"# The best of {len(self.trials)} trials of `fedal tune`: {best.score:.4f},\n"
            f"# {WORDS[self.objective]}. Its length is that of a trial.\n{best.config.to_toml()}"
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
    """Plays trials of one method, `jobs` at a time (0: one per core); what the folders of a former life hold counts."""

    settings: dict[str, Any]
    out: Path
    objective: Objective = "train"
    jobs: int = 0
    watch: Watcher = lambda job, event, details: None
    should_stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.tuning = Tuning(self.out, self.objective, [])

    def grids(self, stages: Sequence[Grid]) -> Tuning:
        """All combinations of each stage in turn; a stage starts from the best of those before it."""
        for stage in stages:
            kept = dict(self.tuning.best.values) if self.tuning.trials else {}
            combinations = itertools.product(*stage.values())
            self._run([{**kept, **dict(zip(stage, each, strict=True))} for each in combinations])
        return self.tuning

    def sample(self, space: Mapping[str, Range | Sequence[Any]], trials: int) -> Tuning:
        """As many trials as asked, chosen by Optuna's tree-structured Parzen estimator from those before.

        Each choice follows from the seed and the scores so far: a search that goes on makes those of its former life
        again and finds them played.
        """
        sampler = Sampler(space, int(self.settings.get("seed", 0)))
        while (done := len(self.tuning.trials)) < trials:
            self._run([sampler.ask() for _ in range(min(SAMPLED_AT_ONCE, trials - done))])
            for trial in self.tuning.trials[done:]:
                sampler.tell(trial)
        return self.tuning

    def _run(self, planned: Sequence[Mapping[str, Any]]) -> None:
        """Checks these settings, plays what is missing of their trials and appends them, scored, in this order."""
        jobs = [self._job(values) for values in planned]
        refuse_other_runs(jobs)
        unscored = {job.name: job for job in jobs if not (job.folder / SCORE).exists()}  # a sampler may repeat itself
        missing = list(unscored.values())
        run_jobs(missing, self.jobs, watch=self.watch, should_stop=self.should_stop, ended=self._note_score)
        for values, job in zip(planned, jobs, strict=True):
            self.tuning.trials.append(self._scored(values, job))

    def _job(self, values: Mapping[str, Any]) -> Job:
        """A trial is named by its values."""
        config = Config(**merge_settings(self.settings, values))
        name = ",".join(f"{key}={value}" for key, value in values.items())
        return Job(name, config.seed, config, self.tuning.path / "trials" / name)

    def _note_score(self, outcome: JobOutcome) -> None:
        """Scores a run that has ended, in its folder. That it diverged, with too large steps perhaps, is a result."""
        found: dict[str, Any] = {"objective": self.tuning.objective, "score": None}
        if outcome.run is not None:
            found["score"] = evaluate(outcome.run, self.tuning.objective)
        elif isinstance(outcome.failure, NonFiniteError):
            found["failure"] = str(outcome.failure)
        else:
            raise_failure(outcome)
            raise ConfigError(outcome.not_applicable)
        write_json(outcome.job.folder / SCORE, found)

    def _scored(self, values: Mapping[str, Any], job: Job) -> Trial:
        """With the score in its folder; one that was found for another objective is found again."""
        found = json.loads((job.folder / SCORE).read_bytes())
        if found["objective"] != self.tuning.objective and found["score"] is not None:
            found["score"] = evaluate(Run(job.folder, trust=True), self.tuning.objective)
        return Trial(values, job.config, job.folder, found["score"], found.get("failure", ""))


def paper_stages(method: str) -> list[Grid]:
    """The paper's two stages; a method without a discriminator has only the first."""
    known = [*Config.model_fields, *methods.get(method).options.model_fields]
    return [stage for stage in PAPER_STAGES if all(key in known for key in stage)]


def evaluate(run: Run, objective: Objective) -> float:
    """What a trial is judged by. `test` chooses settings by the test set, whose accuracy then claims too much."""
    if objective == "test":
        return float(run.final["test_accuracy"])
    from fedal.simulate.prepare import restore_split

    split = restore_split(run.config, run.folder.partition)
    x, y = split.dataset.train_x, split.dataset.train_y
    return mean(_accuracy(run, client, x[own], y[own]) for client, own in split.clients.items())


def _accuracy(run: Run, client: str, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    import torch

    from fedal.metrics import EVALUATION_BATCH
    from fedal.precision import dtype_of

    model, inputs = run.model(client), torch.as_tensor(x, dtype=dtype_of(run.config.precision))
    with torch.no_grad():
        named = torch.cat([model(part).argmax(-1) for part in torch.split(inputs, EVALUATION_BATCH)])
    return float((named.numpy() == y).mean())


class Sampler:
    """Optuna's, with its study in memory: the run folders are what lasts."""

    def __init__(self, space: Mapping[str, Range | Sequence[Any]], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError("--trials needs Optuna. Type: pip install 'fedal[tune]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._distributions = {key: self._distribution(values) for key, values in space.items()}
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def ask(self) -> dict[str, Any]:
        """Settings to try next, with four digits: they go into a config that people read."""
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
    """`lr=1e-3,1e-2` as a list of values and `tau=1:20` as a range."""
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
