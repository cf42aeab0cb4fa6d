"""Runs a config to a finished run folder, and resumes it after any interruption: `fedal.run`, `fedal.resume`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedal import methods
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.engine.player import Cluster, PlayerLost
from fedal.engine.ray import ray_cluster
from fedal.engine.threads import ThreadWorkers, thread_workers
from fedal.errors import ConfigError
from fedal.machine import refuse_windows
from fedal.records.checkpoint import newest_json
from fedal.records.environment import describe_environment, environment_differences
from fedal.records.folder import RunFolder
from fedal.records.pinned import refuse_changed_settings
from fedal.records.run import Run
from fedal.simulate.callback import Callback, Callbacks, Observers, RunInfo
from fedal.simulate.prepare import (
    GivenData,
    GivenPublic,
    given_data,
    given_public,
    prepare_split,
    resolved,
    restore_split,
)
from fedal.simulate.session import Session
from fedal.simulate.staged import CustomModels

MAX_RESTARTS = 10  # of one run after its actors die


def run(
    config: Config,
    out: Path | str | None = None,
    *,
    data: GivenData = None,
    public: GivenPublic = None,
    models: CustomModels | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Starts a new run in folder `out`. Reports all mistakes before anything is written.

    `data`: a `Dataset`, a file or DataFrame, or one of these for each client by name; `public`: an array, file or
    DataFrame. Tables need the config's `schema_file`, or data that were read with `fedal.data.read_data`.
    """
    refuse_windows()
    data = given_data(config, data)
    public = given_public(config, public, data)
    folder = RunFolder(Path(out) if out is not None else default_folder(config, data))
    folder.refuse_if_taken()
    _refuse_unknown_clients(config, models)
    split = prepare_split(config, data, public)
    if data is not None:  # the record names the data that were used, not the default dataset
        config = config.with_(**resolved(config, data), dataset=data.name, data=None, data_in_python=True)
    observers = Observers(RunInfo(folder.path, config), Callbacks(callbacks))
    for note in split.dataset.notes:
        observers.warning(note)
    with observers.until_the_end(), _engine(config, models) as engine:
        session = Session(config, folder, split, observers, *engine, models, data is not None)
        folder.create()
        with folder.locked():
            folder.refuse_if_taken()
            _run_to_completion(session)
    return Run(folder.path, trust=True, models=models)


def resume(
    path: Path | str,
    *,
    iterations: int | None = None,
    trust: bool = False,
    data: GivenData = None,
    public: GivenPublic = None,
    models: CustomModels | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Resumes a run from its newest intact checkpoint; `iterations` extends it, even if it is finished."""
    folder = RunFolder(Path(path))
    refuse_windows()
    config = folder.read_config(trust=trust)
    data = given_data(config, data)
    public = given_public(config, public, data)
    with folder.locked():
        _refuse_other_settings(config, folder)
        longer = config if iterations is None else _extended(config, folder, iterations)
        observers = Observers(RunInfo(folder.path, longer), Callbacks(callbacks))
        if folder.summary.exists() and longer.total_rounds == config.total_rounds:
            observers.warning(f"{folder.path} is already complete.")
            return Run(folder.path, trust=trust, models=models)
        extended, config = longer.total_rounds > config.total_rounds, longer
        if folder.environment.exists():
            saved = folder.read_environment()
            for difference in environment_differences(saved, describe_environment()):
                observers.warning(f"{difference}: the result may not be bit-identical to an uninterrupted run.")
            refuse_forgotten_objects(saved, data, models)
        if folder.partition.exists():
            split = restore_split(config, folder.partition, data, public)
        else:  # the run was killed before this file was written; the seed determines the split
            split = prepare_split(config, data, public)
        with observers.until_the_end(), _engine(config, models) as engine:
            session = Session(config, folder, split, observers, *engine, models, data is not None)
            _run_to_completion(session, extended=extended)
    return Run(folder.path, trust=trust, models=models)


def default_folder(config: Config, data: Dataset | None = None) -> Path:
    dataset = config.dataset if data is None else re.sub(r"[^A-Za-z0-9_.-]+", "-", data.name).strip(".-") or "own"
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    method = config.method.rpartition(":")[2].lower()
    path = Path("runs") / f"{stamp}-{method}-{dataset}-seed{config.seed}"
    others = (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))  # for runs started in the same second
    return next(candidate for candidate in itertools.chain([path], others) if not candidate.exists())


def _refuse_other_settings(config: Config, folder: RunFolder) -> None:
    """Raises ConfigError if config.toml was edited so that the rest of the run would not continue its checkpoint."""
    found = newest_json(folder.checkpoints)
    if found is None:
        return
    rounds, state = found
    refuse_changed_settings(config, state.get("settings", {}), str(folder.config))
    if config.total_rounds < rounds:
        raise ConfigError(
            f"{folder.config} plans {config.total_rounds * config.tau} iterations, but the run's checkpoint was saved "
            f"after {rounds * config.tau}. Put the old value back, or start a new run in another folder."
        )


def _extended(config: Config, folder: RunFolder, iterations: int) -> Config:
    longer = config.with_(iterations=iterations, rounds=None)
    if longer.total_rounds < config.total_rounds:
        raise ConfigError(
            f"iterations = {iterations}: {folder.path} is already planned for {config.total_rounds * config.tau} "
            "iterations, and a run can only be extended. Try a larger number."
        )
    return longer


def _refuse_unknown_clients(config: Config, models: CustomModels | None) -> None:
    unknown = sorted(set(models or {}) - set(config.client_names))
    if unknown:
        raise ConfigError(
            f'models: there is no client "{unknown[0]}". The clients are {", ".join(config.client_names)}.'
        )


def refuse_forgotten_objects(
    saved: Mapping[str, Any], data: Dataset | None, models: CustomModels | None, call: str = "fedal.resume(path"
) -> None:
    """Raises ConfigError when objects passed in Python, which the folder does not hold, are not passed again."""
    if saved.get("data_given_in_python") and data is None:
        raise ConfigError(f"this run was started in Python with your own data: call {call}, data=...).")
    objects = [client for client, model in saved.get("clients", {}).items() if model.startswith("<")]
    missing = [client for client in objects if client not in (models or {})]
    if missing:
        raise ConfigError(f'client "{missing[0]}" has a model that was passed in Python: call {call}, models=...).')


@contextmanager
def _engine(config: Config, models: CustomModels | None) -> Iterator[tuple[ThreadWorkers, Cluster | None]]:
    """The threads of this process and, with engine = ray, the cluster whose actors hold the clients."""
    if config.engine == "threads":
        with thread_workers(config.workers) as workers:
            yield workers, None
        return
    if models:
        raise ConfigError(
            f'engine = ray: the model of client "{min(models)}" was passed in Python and cannot leave this process. '
            "Name it package.module:factory in the config, or use engine = threads."
        )
    if config.method in methods._registered:
        raise ConfigError(
            f'engine = ray: method "{config.method}" is registered in this process only. Name it package.module:METHOD.'
        )
    connected = ray_cluster(config.ray_address, config.workers, gpus=config.device.startswith("cuda"))
    with connected as cluster, thread_workers(cluster.workers) as workers:
        yield workers, cluster


def _run_to_completion(session: Session, *, extended: bool = False) -> None:
    """Runs the session; when an actor dies, continues from the newest checkpoint, as `resume` does."""
    for attempt in itertools.count(1):
        try:
            session.run(extended=extended and attempt == 1)
            return
        except PlayerLost as lost:
            if attempt == MAX_RESTARTS:
                raise
            session.observers.warning(f"{lost}. Continuing from the newest checkpoint with new actors.")
            session = replace(session)  # assembles the federation again
