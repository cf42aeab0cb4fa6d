"""Plays a run from config to finished folder, and continues one after any kind of stop."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedal import methods
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.durable import sync_folder, write_atomically
from fedal.engine.ray import ActorLost, RayCluster, ray_cluster
from fedal.engine.threads import ThreadWorkers, thread_workers
from fedal.errors import ConfigError, FedalError, RunError, Stopped
from fedal.machine import refuse_windows
from fedal.records.checkpoint import load_newest, save_checkpoint, save_model
from fedal.records.folder import Run, RunFolder, describe_environment, environment_differences, write_json
from fedal.simulate.assemble import OwnModels, assemble, build_clients
from fedal.simulate.recorder import Recorder
from fedal.simulate.stacking import resolve_stacked
from fedal.simulate.world import World, prepare_world, restore_world

FIRST_SAVE_S = 5.0
MAX_LIVES = 10  # of one run whose actors die
SAVE_SHARE = 0.02  # checkpoint_every = auto: saving costs at most this share of the time


@dataclass(frozen=True)
class Listener:
    """Whoever watches a run. Every method may be replaced."""

    started: Callable[[Config, World, dict[str, str], int, int], None] = lambda *_: None  # ..., rounds done, in all
    advanced: Callable[[int, int], None] = lambda *_: None  # iterations done, in all
    recorded: Callable[[dict[str, Any]], None] = lambda row: None
    warned: Callable[[str], None] = lambda text: None
    should_stop: Callable[[], bool] = lambda: False


def run(
    config: Config,
    out: Path | str | None = None,
    *,
    data: Dataset | None = None,
    public: NDArray[np.float32] | None = None,
    models: OwnModels | None = None,
    listener: Listener | None = None,
) -> Run:
    """Starts a new run in folder `out`. Mistakes are reported before anything is written."""
    refuse_windows()
    folder = RunFolder(Path(out) if out is not None else default_folder(config))
    folder.refuse_if_taken()
    _refuse_unknown_clients(config, models)
    world = prepare_world(config, data, public)
    with _engine(config, models) as engine:
        begin = partial(_Session, config, folder, world, engine, models, listener or Listener(), data is not None)
        session = begin()
        folder.create()
        with folder.locked():
            folder.refuse_if_taken()
            _play_to_the_end(session, begin)
    return Run(folder.path, trust=True, models=models)


def resume(
    path: Path | str,
    *,
    iterations: int | None = None,
    trust: bool = False,
    data: Dataset | None = None,
    public: NDArray[np.float32] | None = None,
    models: OwnModels | None = None,
    listener: Listener | None = None,
) -> Run:
    """Continues a run from its newest sound checkpoint; with `iterations`, a finished run goes on to that length."""
    folder = RunFolder(Path(path))
    refuse_windows()
    listener = listener or Listener()
    config = folder.read_config(trust=trust)
    with folder.locked():
        longer = config if iterations is None else _extended(config, folder, iterations)
        if folder.summary.exists() and longer.total_rounds == config.total_rounds:
            listener.warned(f"{folder.path} is already complete.")
            return Run(folder.path, trust=trust, models=models)
        grows, config = longer.total_rounds > config.total_rounds, longer
        if folder.environment.exists():
            saved = folder.read_environment()
            for difference in environment_differences(saved, describe_environment()):
                listener.warned(f"{difference}: the result may differ in bits from an uninterrupted run.")
            _refuse_forgotten_objects(saved, data, models)
        if folder.partition.exists():
            world = restore_world(config, folder.partition, data, public)
        else:  # killed before it was written; it follows from the seed
            world = prepare_world(config, data, public)
        with _engine(config, models) as engine:
            begin = partial(_Session, config, folder, world, engine, models, listener, data is not None)
            _play_to_the_end(begin(), begin, grows=grows)
    return Run(folder.path, trust=trust, models=models)


def default_folder(config: Config) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    method = config.method.rpartition(":")[2].lower()
    path = Path("runs") / f"{stamp}-{method}-{config.dataset}-seed{config.seed}"
    others = (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))  # of runs that began in the same second
    return next(candidate for candidate in itertools.chain([path], others) if not candidate.exists())


def _extended(config: Config, folder: RunFolder, iterations: int) -> Config:
    longer = config.with_(iterations=iterations, rounds=None)
    if longer.total_rounds < config.total_rounds:
        raise ConfigError(
            f"iterations = {iterations}: {folder.path} is planned for {config.total_rounds * config.tau} iterations "
            "already; a run can only grow."
        )
    return longer


def _refuse_missing_device(device: str) -> None:
    try:
        is_meta = torch.zeros(1, device=device).is_meta
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device = {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    if is_meta:
        raise ConfigError(
            f"device = {device!r}: tensors there have shapes and no numbers, so nothing can be learned. "
            "Expected is a device that computes: try device = cpu, or cuda where there is a GPU."
        )


def _refuse_unknown_clients(config: Config, models: OwnModels | None) -> None:
    unknown = sorted(set(models or {}) - set(config.client_names))
    if unknown:
        raise ConfigError(
            f'models: there is no client "{unknown[0]}". The clients are {", ".join(config.client_names)}.'
        )


def _refuse_forgotten_objects(saved: Mapping[str, Any], data: Dataset | None, models: OwnModels | None) -> None:
    """Objects given in Python are not in the folder: they must be given again."""
    if saved.get("data_given_in_python") and data is None:
        raise ConfigError("this run was started in Python with its own data: call fedal.resume(path, data=...).")
    objects = [client for client, model in saved.get("clients", {}).items() if model.startswith("<")]
    missing = [client for client in objects if client not in (models or {})]
    if missing:
        raise ConfigError(
            f'client "{missing[0]}" has a model that was given in Python: call fedal.resume(path, models=...).'
        )


@dataclass(frozen=True)
class _Engine:
    """Threads of this process, and the Ray cluster that they speak to if the clients are there."""

    workers: ThreadWorkers
    cluster: RayCluster | None = None


@contextmanager
def _engine(config: Config, models: OwnModels | None) -> Iterator[_Engine]:
    if config.engine == "threads":
        with thread_workers(config.workers) as workers:
            yield _Engine(workers)
        return
    if models:
        raise ConfigError(
            f'engine = ray: the model of client "{min(models)}" was given in Python and would stay in this process. '
            "Name it package.module:factory in the config, or use engine = threads."
        )
    if config.method in methods._own:
        raise ConfigError(
            f'engine = ray: method "{config.method}" is registered in this process only. Name it package.module:METHOD.'
        )
    with ray_cluster(config.ray_address, config.workers) as cluster, thread_workers(cluster.workers) as workers:
        yield _Engine(workers, cluster)


def _play_to_the_end(session: _Session, begin: Callable[[], _Session], *, grows: bool = False) -> None:
    """When an actor dies, the run goes on from the newest checkpoint with new actors, as a resumed one does."""
    for life in itertools.count(1):
        try:
            session.play(grows=grows and life == 1)
            return
        except ActorLost as lost:
            if life == MAX_LIVES:
                raise
            session.warn(f"{lost}. Going on from the newest checkpoint with new actors.")
            session = begin()


class _Session:
    """One process's work on one run folder."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        world: World,
        engine: _Engine,
        models: OwnModels | None,
        listener: Listener,
        own_data: bool,
    ) -> None:
        self._config, self._folder, self._world = config, folder, world
        self._listener, self._own_data = listener, own_data
        _refuse_missing_device(config.device)
        self._recorder = Recorder(config, world, engine.workers, listener.recorded)
        phase_done, observe = self._recorder.phase_done, self._recorder.observe
        self._assembly = assemble(
            config, world, engine.workers, own_models=models, phase_done=phase_done, observe=observe
        )
        if engine.cluster is not None:
            make = partial(build_clients, config.to_toml(), world, self._assembly.model_names)
            remote = engine.cluster.place(config.client_names, make, phase_done)
            self._assembly.federation.clients.update(remote)
            self._assembly.learners.update({name: client.learner for name, client in remote.items()})
        self._recorder.attach(self._assembly)
        self._seconds_before = 0.0
        self._started = self._saved_at = time.monotonic()
        self._save_cost_s = 0.0

    def _write_folder(self, grows: bool) -> None:
        """Config first: a folder with it and no checkpoint resumes at round 0."""
        if grows:  # never complete and longer at once, whenever it is killed
            self._folder.summary.unlink(missing_ok=True)
        if grows or not self._folder.config.exists():
            write_atomically(self._folder.config, self._resolved().to_toml().encode())
        if not self._folder.partition.exists():
            self._world.save(self._folder.partition)
        if not self._folder.environment.exists():
            data = self._world.dataset
            write_json(
                self._folder.environment,
                {
                    **describe_environment(),
                    "clients": self._assembly.model_names,
                    "input_shape": list(self._world.input_shape),
                    "n_classes": data.n_classes,
                    "data": f"{data.name}: {data.provenance}" if data.provenance else data.name,
                    "data_given_in_python": self._own_data,
                },
            )

    def warn(self, text: str) -> None:
        self._listener.warned(text)

    def play(self, *, grows: bool = False) -> None:
        """From the newest checkpoint to the end; a run that `grows` was planned shorter."""
        try:
            self._write_folder(grows)
            self._play()
        except Stopped:
            raise
        except Exception as error:
            self._note_failure(error)
            if isinstance(error, FedalError):
                raise
            raise RunError(
                f"{type(error).__name__}: {error}. The last checkpoint in {self._folder.path} stands."
            ) from error

    def _play(self) -> None:
        config, federation = self._config, self._assembly.federation
        done, lengths = self._restore()
        self._recorder.open(self._folder, lengths)
        self._folder.checkpoints.mkdir(exist_ok=True)
        sync_folder(self._folder.path)  # new names must last as long as the checkpoint that counts their bytes
        total = config.total_rounds
        self._listener.started(config, self._world, self._assembly.model_names, done, total)
        try:
            for t in range(done, total):
                self._recorder.begin(t, last=t + 1 == total)
                present = federation.play_round(t)
                self._recorder.end(t + 1, present, self._seconds())
                self._listener.advanced((t + 1) * config.tau, total * config.tau)
                stop = self._listener.should_stop()
                if t + 1 == total or stop or self._save_is_due(t + 1):
                    self._save(t + 1)
                if stop and t + 1 < total:
                    at = (t + 1) * config.tau
                    raise Stopped(f"stopped after iteration {at}. Continue with `fedal resume {self._folder.path}`.")
            self._finish(total)
        finally:
            self._recorder.close()

    def _finish(self, rounds: int) -> None:
        """The final rows come after the last checkpoint, so that a longer run can take them back."""
        final = self._recorder.final(rounds, self._seconds())
        self._recorder.sync()
        self._folder.models.mkdir(exist_ok=True)
        for client, learner in self._assembly.learners.items():
            save_model(self._folder.models / f"{client}.safetensors", learner.state_dict())
        self._folder.failure.unlink(missing_ok=True)
        write_json(self._folder.summary, {"status": "complete", "final": final})

    # state

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _save_is_due(self, rounds: int) -> bool:
        if isinstance(self._config.checkpoint_every, int):
            return rounds % self._config.checkpoint_every == 0
        return time.monotonic() - self._saved_at >= max(FIRST_SAVE_S, self._save_cost_s / SAVE_SHARE)

    def _save(self, rounds: int) -> None:
        began = time.monotonic()
        federation = self._assembly.federation
        state = {
            "record_bytes": self._recorder.sync(),
            "record": self._recorder.state_dict(),
            "seconds": self._seconds(),
            "wire": federation.wire.state_dict(),
            "server": federation.server.state_dict(),
            "clients": {
                client: {"learner": self._assembly.learners[client].state_dict, "method": logic.state_dict}
                for client, logic in federation.clients.items()
            },
        }
        save_checkpoint(self._folder.checkpoints, rounds, state)
        self._saved_at = time.monotonic()
        self._save_cost_s = self._saved_at - began

    def _restore(self) -> tuple[int, dict[str, int]]:
        """Rounds done at the newest checkpoint, and how long the record was then.

        Nothing of the checkpoint is kept: its tensors are pages of the file, which would fill memory, and the disk
        after its end, for as long as one of them is there.
        """
        found = load_newest(self._folder.checkpoints, self._listener.warned)
        if found is None:
            return 0, {"metrics": 0, "clients": 0}
        done, state = found
        federation = self._assembly.federation
        self._seconds_before = float(state["seconds"])
        federation.wire.load_state_dict(state["wire"])
        federation.server.load_state_dict(state["server"])
        self._recorder.load_state_dict(state["record"])
        for client, logic in federation.clients.items():
            self._assembly.learners[client].load_state_dict(state["clients"][client]["learner"])
            logic.load_state_dict(state["clients"][client]["method"])
        return done, state["record_bytes"]

    def _note_failure(self, error: BaseException) -> None:
        cause = error.__cause__ or error
        try:
            write_json(
                self._folder.failure,
                {
                    "error": f"{type(error).__name__}: {error}",
                    "traceback": "".join(traceback.format_exception(cause)),
                    "time": datetime.now().isoformat(timespec="seconds"),
                },
            )
        except OSError:  # the disk is full: the reason still reaches the terminal
            self._listener.warned(f"the reason could not be written to {self._folder.failure}")

    def _resolved(self) -> Config:
        """The config with everything decided that was left to the data: what config.toml records."""
        from fedal.simulate.world import default_partition

        changes: dict[str, Any] = {
            "partition": self._config.partition or default_partition(self._config),
            "stacked": resolve_stacked(self._config, self._assembly.model_names),
        }
        if self._world.public is not None:
            changes["public_size"] = len(self._world.public)
        if self._config.iterations is None and self._config.rounds is None:
            changes["iterations"] = self._config.total_rounds * self._config.tau
        return self._config.with_(**changes)
