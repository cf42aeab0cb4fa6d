"""Plays a run from config to finished folder, and continues one after any kind of stop."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors

from fedal.analysis.instruments import Panel, mean_over_clients
from fedal.analysis.site import Columns, Site
from fedal.checkpoint import load_newest, save_checkpoint
from fedal.config import Config
from fedal.data.dataset import Dataset
from fedal.durable import RecordFile, sync_folder, write_atomically
from fedal.engine.threads import ThreadWorkers, thread_workers
from fedal.errors import ConfigError, FedalError, RunError, Stopped
from fedal.experiments.assemble import Assembly, OwnModels, assemble
from fedal.experiments.world import World, prepare_world, restore_world
from fedal.learners.torch_learner import TorchLearner
from fedal.messages import Outputs
from fedal.methods.base import Uploads, stack_outputs
from fedal.metrics import accuracy, disagreement, stratified_subset
from fedal.runs import Run, RunFolder, describe_environment, environment_differences, write_json

FIRST_SAVE_S = 5.0
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
    folder = RunFolder(Path(out) if out is not None else default_folder(config))
    folder.refuse_if_taken()
    _refuse_unknown_clients(config, models)
    world = prepare_world(config, data, public)
    with thread_workers(config.workers) as workers:
        session = _Session(config, folder, world, workers, models, listener or Listener(), data is not None)
        folder.create()
        with folder.locked():
            folder.refuse_if_taken()
            session.play()
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
        with thread_workers(config.workers) as workers:
            session = _Session(config, folder, world, workers, models, listener, data is not None)
            session.play(grows=grows)
    return Run(folder.path, trust=trust, models=models)


def default_folder(config: Config) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    method = config.method.rpartition(":")[2].lower()
    return Path("runs") / f"{stamp}-{method}-{config.dataset}-seed{config.seed}"


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
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device = {device!r} cannot be used here: {str(error).splitlines()[0]}") from None


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


@dataclass
class _Observations:
    """What the record says about the exchanges of one round; filled when the round is recorded or the last."""

    recorded: bool = False
    wanted: bool = False
    disagreements: list[torch.Tensor] = field(default_factory=list)
    after_local: dict[str, float] = field(default_factory=dict)

    def disagreement(self) -> float | None:
        return float(torch.stack(self.disagreements).mean()) if self.disagreements else None


class _Session:
    """One process's work on one run folder."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        world: World,
        workers: ThreadWorkers,
        models: OwnModels | None,
        listener: Listener,
        own_data: bool,
    ) -> None:
        self._config, self._folder, self._world = config, folder, world
        self._workers, self._listener, self._own_data = workers, listener, own_data
        self._seen = _Observations()
        _refuse_missing_device(config.device)
        self._assembly: Assembly = assemble(
            config, world, workers, own_models=models, phase_done=self._phase_done, observe=self._observe
        )
        self._panel = Panel(config.instruments, Site(config, world, self._assembly, workers))
        test_y = world.dataset.test_y
        self._all_tests = torch.arange(len(test_y), device=config.device)
        self._some_tests = torch.as_tensor(stratified_subset(test_y, config.eval_samples, config.seed))
        self._seconds_before = 0.0
        self._disagreement_before: float | None = None  # of the round that the checkpoint was made after
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
        restored = load_newest(self._folder.checkpoints, self._listener.warned)
        done, lengths = 0, {"metrics": 0, "clients": 0}
        if restored is not None:
            done, state = restored
            lengths = state["record_bytes"]
            self._load(state)
        self._metrics = RecordFile(self._folder.metrics, lengths["metrics"])
        self._clients = RecordFile(self._folder.clients, lengths["clients"])
        self._folder.checkpoints.mkdir(exist_ok=True)
        sync_folder(self._folder.path)  # new names must last as long as the checkpoint that counts their bytes
        total = config.total_rounds
        self._listener.started(config, self._world, self._assembly.model_names, done, total)
        try:
            for t in range(done, total):
                recorded = self._is_recorded(t)
                self._seen = _Observations(recorded, wanted=recorded or t + 1 == total)
                if recorded:
                    self._panel.begins()
                present = federation.play_round(t)
                if recorded:
                    self._record(t + 1, present)
                self._listener.advanced((t + 1) * config.tau, total * config.tau)
                stop = self._listener.should_stop()
                if t + 1 == total or stop or self._save_is_due(t + 1):
                    self._save(t + 1)
                if stop and t + 1 < total:
                    at = (t + 1) * config.tau
                    raise Stopped(f"stopped after iteration {at}. Continue with `fedal resume {self._folder.path}`.")
            self._finish(total)
        finally:
            self._metrics.close()
            self._clients.close()

    # evaluation and records

    def _is_recorded(self, t: int) -> bool:
        """Whether an evaluation falls due in round t: a multiple of eval_every, rounded up to the round's end."""
        tau, every = self._config.tau, self._config.eval_every
        return (t + 1) * tau // every > t * tau // every

    def _phase_done(self, client: str, phase: str) -> None:
        if not self._seen.recorded or phase != "after_local":
            return
        if self._config.eval_after_local:
            self._seen.after_local[client] = self._accuracy(client, self._some_tests)
        self._panel.trained(client)

    def _observe(self, uploads: Uploads) -> None:
        if self._seen.wanted and all(isinstance(message, Outputs) for message in uploads.values()):
            _, outputs = stack_outputs(list(uploads), uploads)
            self._seen.disagreements.append(disagreement(outputs))

    def _accuracy(self, client: str, indices: torch.Tensor) -> float:
        assembly = self._assembly
        try:
            return accuracy(assembly.learners[client], assembly.test_samples, assembly.test_labels, indices)
        except FedalError as error:
            raise type(error)(f'client "{client}": {error}') from None

    def _accuracies(self, indices: torch.Tensor) -> dict[str, float]:
        names = list(self._assembly.learners)
        return dict(zip(names, self._workers.map(lambda name: self._accuracy(name, indices), names), strict=True))

    def _record(self, rounds: int, present: list[str], *, final: bool = False) -> None:
        seen, server = self._seen, self._assembly.federation.server
        extra = {name: float(value) for name, value in server.observed.items()}
        zeta = seen.disagreement() if seen.disagreements else self._disagreement_before
        if zeta is not None:
            extra["disagreement"] = zeta
        indices = self._all_tests if final else self._some_tests
        if server.learner is not None:
            tests = self._assembly.test_samples, self._assembly.test_labels
            extra["server_test_accuracy"] = accuracy(server.learner, *tests, indices)
        if seen.after_local and not final:
            # Threads filled it as they came: in roster order, rows and sums do not depend on that.
            in_order = {name: seen.after_local[name] for name in self._assembly.learners if name in seen.after_local}
            self._write(rounds, "after_local", in_order, len(self._some_tests), final, extra, present)
        measured = {} if final else self._panel.ends()
        extra |= mean_over_clients(measured)
        self._write(rounds, "after_global", self._accuracies(indices), len(indices), final, extra, present, measured)

    def _write(
        self,
        rounds: int,
        phase: str,
        accuracies: Mapping[str, float],
        n_samples: int,
        final: bool,
        extra: Mapping[str, float],
        present: list[str],
        measured: Columns | None = None,
    ) -> None:
        wire = self._assembly.federation.wire
        values = np.array(list(accuracies.values()))
        where = {"round": rounds, "iteration": rounds * self._config.tau, "phase": phase}
        row = {
            **where,
            "test_accuracy": float(values.mean()),
            "test_accuracy_std": float(values.std()),
            "test_accuracy_min": float(values.min()),
            "test_samples": n_samples,
            "final": final,
            "up_bytes": wire.up_bytes.total(),
            "down_bytes": wire.down_bytes.total(),
            "participants": len(present),
            **extra,
            "seconds": round(self._seconds(), 3),
        }
        self._metrics.append(row)
        for client, value in accuracies.items():
            self._clients.append(
                {
                    **where,
                    "client": client,
                    "model": self._assembly.model_names[client],
                    "private_samples": len(self._world.clients[client]),
                    "test_accuracy": value,
                    "test_samples": n_samples,
                    "final": final,
                    "participated": client in present,
                    "up_bytes": wire.up_bytes[client],
                    "down_bytes": wire.down_bytes[client],
                    **(measured or {}).get(client, {}),
                }
            )
        self._listener.recorded(row)

    def _finish(self, rounds: int) -> None:
        """The final rows come after the last checkpoint, so that a longer run can take them back."""
        self._record(rounds, list(self._assembly.learners), final=True)
        final = {"metrics": self._metrics.sync(), "clients": self._clients.sync()}
        self._folder.models.mkdir(exist_ok=True)
        for client, learner in self._assembly.learners.items():
            if isinstance(learner, TorchLearner):
                weights = {name: value.contiguous() for name, value in learner.weights().items()}
                write_atomically(self._folder.models / f"{client}.safetensors", save_tensors(weights))
        rows = [json.loads(line) for line in self._folder.metrics.read_bytes()[: final["metrics"]].splitlines()]
        self._folder.failure.unlink(missing_ok=True)
        write_json(self._folder.summary, {"status": "complete", "final": rows[-1]})

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
            "record_bytes": {"metrics": self._metrics.sync(), "clients": self._clients.sync()},
            "seconds": self._seconds(),
            "wire": federation.wire.state_dict(),
            "server": federation.server.state_dict(),
            "disagreement": self._seen.disagreement(),
            "observed": {name: float(value) for name, value in federation.server.observed.items()},
            "clients": {
                client: {"learner": logic.learner.state_dict(), "method": logic.state_dict()}
                for client, logic in federation.clients.items()
            },
        }
        save_checkpoint(self._folder.checkpoints, rounds, state)
        self._saved_at = time.monotonic()
        self._save_cost_s = self._saved_at - began

    def _load(self, state: dict[str, Any]) -> None:
        federation = self._assembly.federation
        self._seconds_before = float(state["seconds"])
        self._disagreement_before = state["disagreement"]
        federation.wire.load_state_dict(state["wire"])
        federation.server.load_state_dict(state["server"])
        federation.server.observed = {name: torch.tensor(value) for name, value in state["observed"].items()}
        for client, logic in federation.clients.items():
            logic.learner.load_state_dict(state["clients"][client]["learner"])
            logic.load_state_dict(state["clients"][client]["method"])

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
        from fedal.experiments.world import default_partition

        changes: dict[str, Any] = {"partition": self._config.partition or default_partition(self._config)}
        if self._world.public is not None:
            changes["public_size"] = len(self._world.public)
        if self._config.iterations is None and self._config.rounds is None:
            changes["iterations"] = self._config.total_rounds * self._config.tau
        return self._config.with_(**changes)
