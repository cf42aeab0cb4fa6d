"""Searches settings: grids stage by stage, or a sampler of Optuna. Every trial is a run folder with its score in it.

The folders are the memory of a search: one that was killed continues its trial and repeats none that is finished, and a
grid that grows plays only what is new.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedal import methods
from fedal.campaigns.compare import Job, Watcher, play_job, refuse_other_run
from fedal.config import Config, merge_settings, parse_assignments
from fedal.durable import write_atomically
from fedal.errors import ConfigError, FedalError, NonFiniteError, Stopped
from fedal.records.folder import RunFolder, write_json
from fedal.records.run import Run

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
    """All trials of a search in the order they were played."""

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
        best, buffer = self.best, io.StringIO()
        text = (
            f"# The best of {len(self.trials)} trials of `fedal tune`: {best.score:.4f},\n"
            f"# {WORDS[self.objective]}. Its length is that of a trial.\n{best.config.to_toml()}"
        )
        keys = list(dict.fromkeys(key for trial in self.trials for key in trial.values))
        writer = csv.writer(buffer)
        writer.writerow([*keys, self.objective, "failure", "folder"])
        for trial in self.trials:
            values = [trial.values.get(key, "") for key in keys]
            writer.writerow([*values, trial.score, trial.failure, trial.folder.relative_to(self.path)])
        files = {"best.toml": text, "trials.csv": buffer.getvalue()}
        for name, content in files.items():
            write_atomically(self.path / name, content.encode())
        return [self.path / name for name in files]


class Search:
    """Plays trials of one method; what the folders of a former life hold counts."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        out: Path | str,
        *,
        objective: Objective = "train",
        watch: Watcher = lambda job, event, details: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._watch, self._should_stop = dict(settings), watch, should_stop
        self._public_sizes: dict[tuple[str | None, ...], int] = {}
        self.tuning = Tuning(Path(out), objective, [])

    def grids(self, stages: Sequence[Grid]) -> Tuning:
        """All combinations of each stage in turn; a stage starts from the best of those before it."""
        for stage in stages:
            kept = dict(self.tuning.best.values) if self.tuning.trials else {}
            combinations = (dict(zip(stage, each, strict=True)) for each in itertools.product(*stage.values()))
            planned = [self._trial({**kept, **values}) for values in combinations]
            for trial in planned:
                self._play(trial)
        return self.tuning

    def sample(self, space: Mapping[str, Range | Sequence[Any]], trials: int) -> Tuning:
        """As many trials as asked, each chosen by Optuna's tree-structured Parzen estimator from those before."""
        former = self._former(space)
        sampler = Sampler(space, int(self._settings.get("seed", 0)) + len(former))
        while len(self.tuning.trials) < trials:
            self._play(self._trial(former.pop(0) if former else sampler.ask()))
            sampler.tell(self.tuning.trials[-1])
        return self.tuning

    def _former(self, space: Mapping[str, object]) -> list[dict[str, Any]]:
        """The settings of the trials of this search that were begun in a former life."""
        folders = sorted(path.parent for path in (self.tuning.path / "trials").glob("*/config.toml"))
        configs = [RunFolder(folder).read_config(trust=True) for folder in folders]
        flat = [config.model_dump() | config.options.model_dump() for config in configs]
        found = [{key: values[key] for key in space if key in values} for values in flat]
        return [values for values, folder in zip(found, folders, strict=True) if _name(values) == folder.name]

    def _trial(self, values: Mapping[str, Any]) -> Trial:
        """Checked, and named by its values; refuses a folder of another search."""
        config = Config(**merge_settings(self._settings, values))
        trial = Trial(values, config, self.tuning.path / "trials" / _name(values))
        refuse_other_run(_job(trial), self._public_sizes)
        return trial

    def _play(self, trial: Trial) -> None:
        """Plays what is missing of it, scores it and notes the score in its folder."""
        score = trial.folder / SCORE
        if not score.exists():
            write_json(score, self._score(trial))
        found = json.loads(score.read_bytes())
        if found["objective"] != self.tuning.objective and found["score"] is not None:
            found["score"] = evaluate(Run(trial.folder, trust=True), self.tuning.objective)
        self.tuning.trials.append(
            Trial(trial.values, trial.config, trial.folder, found["score"], found.get("failure", ""))
        )

    def _score(self, trial: Trial) -> dict[str, Any]:
        job, objective = _job(trial), self.tuning.objective
        try:
            if not RunFolder(trial.folder).summary.exists():
                refused = play_job(job, partial(self._watch, job), self._should_stop)
                if refused:
                    raise ConfigError(refused)
            return {"objective": objective, "score": evaluate(Run(trial.folder, trust=True), objective)}
        except Stopped:
            raise Stopped("stopped; what is finished is kept. Type the same command again to continue.") from None
        except NonFiniteError as error:  # a step size that is too large, for instance: a result too
            return {"objective": objective, "score": None, "failure": str(error)}


def _name(values: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _job(trial: Trial) -> Job:
    return Job(trial.folder.name, trial.config.seed, trial.config, trial.folder)


def paper_stages(method: str) -> list[Grid]:
    """The paper's two stages; a method without a discriminator has only the first."""
    known = [*Config.model_fields, *methods.get(method).options.model_fields]
    return [stage for stage in PAPER_STAGES if all(key in known for key in stage)]


def evaluate(run: Run, objective: Objective) -> float:
    """What a trial is judged by. `test` chooses settings by the test set, whose accuracy then claims too much."""
    if objective == "test":
        return float(run.final["test_accuracy"])
    from fedal.simulate.prepare import restore_world

    world = restore_world(run.config, run.folder.partition)
    x, y = world.dataset.train_x, world.dataset.train_y
    return fmean(_accuracy(run, client, x[own], y[own]) for client, own in world.clients.items())


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
