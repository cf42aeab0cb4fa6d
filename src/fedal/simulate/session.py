"""One process's work on one run folder: rounds, checkpoints, the record, and how it ends."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.durable import make_folder, sync_folder, write_atomically
from fedal.engine.player import Cluster
from fedal.engine.threads import ThreadWorkers
from fedal.errors import FedalError, RunError, Stopped
from fedal.learners.base import State
from fedal.records.checkpoint import fitting, load_newest, readable_json, save_checkpoint, save_model
from fedal.records.environment import describe_environment
from fedal.records.folder import RunFolder, write_json
from fedal.records.model_files import TOGETHER, ModelFile, trained_models
from fedal.records.pinned import pinned_settings
from fedal.records.rest import RestFolder
from fedal.records.rows import Record
from fedal.records.run import read_rows
from fedal.simulate.assemble import assemble
from fedal.simulate.callback import Observers
from fedal.simulate.checks import refuse_missing_device
from fedal.simulate.participation import absence, cohort
from fedal.simulate.prepare import resolved
from fedal.simulate.recorder import Recorder
from fedal.simulate.scores import final_scores
from fedal.simulate.stacking import resolve_stacked
from fedal.simulate.staged import CustomModels
from fedal.simulate.unstacked import why_none_is_stacked
from fedal.user_code import one_line

FIRST_SAVE_S = 5.0
MANY = 1000  # clients: of more, only the models of the evaluated ones are files of their own at the end
SAVE_SHARE = 0.02  # checkpoint_every = auto: saving costs at most this share of the time


@dataclass
class Session:
    """The constructor checks everything that can be checked; only `run` writes."""

    config: Config
    folder: RunFolder
    split: DataSplit
    observers: Observers
    workers: ThreadWorkers
    cluster: Cluster | None  # other processes, if the clients are there
    models: CustomModels | None = None
    custom_data: bool = False  # passed in Python, so not in the folder

    def __post_init__(self) -> None:
        refuse_missing_device(self.config.device)
        self._rest = RestFolder(self.folder.rest) if self.config.rest == "disk" else None
        self._assembly = assemble(
            self.config, self.split, self.workers, custom_models=self.models, cluster=self.cluster, rest=self._rest
        )
        if why := why_none_is_stacked(self.config, self._assembly.learners, len(self.split.dataset.sample_shape)):
            self.observers.warning(why)
        self._seconds_before = 0.0
        self._started = self._saved_at = time.monotonic()
        self._save_cost_s = 0.0

    def run(self, *, extended: bool = False) -> None:
        """Runs from the newest checkpoint to the end; `extended` says that the config is longer than the saved one."""
        try:
            self._write_folder(extended)
            if self._rest is not None:  # after the config: a folder without one and not empty could not be used again
                self._rest.open()
            self._run_all()
        except Stopped:
            raise
        except Exception as error:
            self._note_failure(error)
            if isinstance(error, FedalError):
                raise
            raise RunError(f"{one_line(error)}. The last checkpoint in {self.folder.path} is intact.") from error

    def _write_folder(self, extended: bool) -> None:
        """Writes the config first: a folder with a config and no checkpoint resumes at round 0."""
        if extended:  # before the new config: a kill in between must not leave a longer run marked complete
            self.folder.summary.unlink(missing_ok=True)
        if extended or not self.folder.checkpoints.exists():  # a config without a checkpoint may still be unresolved
            write_atomically(self.folder.config, self._resolved().to_toml().encode())
        if not self.folder.partition.exists():
            self.split.save(self.folder.partition)
        if not self.folder.environment.exists():
            data = self.split.dataset
            write_json(
                self.folder.environment,
                {
                    **describe_environment(),
                    "clients": self._assembly.model_names,
                    "input_shape": list(data.sample_shape),
                    "n_classes": data.n_classes,
                    "data": f"{data.name}: {data.provenance}" if data.provenance else data.name,
                    "data_given_in_python": self.custom_data,
                },
            )

    def _run_all(self) -> None:
        found = load_newest(self.folder.checkpoints, self.observers.warning)
        done, state = found if found is not None else (0, None)
        if self._rest is not None:
            self._rest.at(done)
            self._rest.saved(saved for _, saved in readable_json(self.folder.checkpoints))
        with fitting(self.folder.checkpoints):
            opened = Record(self.folder, state["record_bytes"] if state else {}, cohorts=self.config.is_partial)
        with closing(opened) as record:
            recorder = Recorder(self._assembly, record, self.observers.evaluation)
            if state:
                with fitting(self.folder.checkpoints):
                    self._seconds_before = float(state["seconds"])
                    self._assembly.federation.load_state_dict(state)
                    recorder.load_state_dict(state["record"])
            # The tensors are memory-mapped: they would fill memory, and keep the file on disk after its deletion.
            del found, state
            make_folder(self.folder.checkpoints)
            sync_folder(self.folder.path)  # the new files must be durable before a checkpoint records their lengths
            self._run_rounds(done, record, recorder)
            # After the last checkpoint, so that a run that is extended later drops this row.
            final = recorder.final(self.config.total_rounds, self._seconds())
            record.sync()
        self._finish(final, recorder.best.states)

    def _run_rounds(self, done: int, record: Record, recorder: Recorder) -> None:
        tau, total = self.config.tau, self.config.total_rounds
        self.observers.start(done * tau)
        if done == 0:
            recorder.start(self._seconds())
        for t in range(done, total):
            recorder.begin(t, last=t + 1 == total)
            if self._rest is not None:
                self._rest.at(t + 1)
                if t + 1 < total:
                    self._rest.expect(cohort(self.config, t + 1))
            present = self._assembly.federation.run_round(t, absence(self.config, t))
            recorder.end(t + 1, present, self._seconds())
            self.observers.round((t + 1) * tau)
            stop = self.observers.should_stop()
            if t + 1 == total or stop or self._save_is_due(t + 1):
                self._save(t + 1, record, recorder)
            if stop and t + 1 < total:
                at = (t + 1) * tau
                raise Stopped(f"stopped after iteration {at}. Continue with `fedal resume {self.folder.path}`.")

    def _finish(self, final: dict[str, Any], best: Mapping[str, State]) -> None:
        make_folder(self.folder.models)
        if best:
            make_folder(self.folder.best_models)
        for client, state in best.items():
            save_model(self.folder.best_models / f"{client}.safetensors", state)
        learners = self._assembly.learners
        for client in self._assembly.view.evaluated if len(learners) > MANY else learners:
            save_model(self.folder.models / f"{client}.safetensors", learners[client].state_dict())
        models = trained_models(read_rows(self.folder.clients), self._assembly.model_names)
        about = ModelFile.of(self.config, self.split.dataset, models, final["iteration"], len(learners))
        about.write(self.folder.models / TOGETHER)
        if scores := final_scores(self._assembly.view):
            write_json(self.folder.scores, scores)
        self.folder.failure.unlink(missing_ok=True)
        split = self.split
        data = {
            "effective_classes": split.effective_classes,
            "unassigned": split.leftovers,
            "rarest_class": split.rarest_class._asdict(),
        }
        write_json(self.folder.summary, {"status": "complete", "final": final, "data": data})

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _save_is_due(self, rounds: int) -> bool:
        if isinstance(self.config.checkpoint_every, int):
            return rounds % self.config.checkpoint_every == 0
        return time.monotonic() - self._saved_at >= max(FIRST_SAVE_S, self._save_cost_s / SAVE_SHARE)

    def _save(self, rounds: int, record: Record, recorder: Recorder) -> None:
        began = time.monotonic()
        kept = {"record_bytes": record.sync(), "record": recorder.state_dict(), "seconds": self._seconds()}
        kept["settings"] = pinned_settings(self._resolved())
        if self._rest is not None:
            self._rest.sync()
        save_checkpoint(self.folder.checkpoints, rounds, {**kept, **self._assembly.federation.state_dict()})
        if self._rest is not None:  # only now: until a newer checkpoint is committed, the files of the last one count
            self._rest.saved(saved for _, saved in readable_json(self.folder.checkpoints))
        self._saved_at = time.monotonic()
        self._save_cost_s = self._saved_at - began
        self.observers.checkpoint(rounds * self.config.tau)

    def _note_failure(self, error: BaseException) -> None:
        cause = error.__cause__ or error
        try:
            write_json(
                self.folder.failure,
                {
                    "error": f"{type(error).__name__}: {error}",
                    "traceback": "".join(traceback.format_exception(cause)),
                    "time": datetime.now().isoformat(timespec="seconds"),
                },
            )
        except OSError:  # the disk is full; the error still reaches the terminal
            self.observers.warning(f"the error could not be written to {self.folder.failure}")

    def _resolved(self) -> Config:
        """The config with all defaults that depend on the data or the length filled in, as config.toml records it."""
        stacked = resolve_stacked(self.config, self._assembly.model_names)
        public = {} if self.split.public is None else {"public_size": len(self.split.public)}
        return self.config.with_(
            **resolved(self.config, self.split.dataset),
            **public,
            stacked=stacked,
            eval_every=self.config.eval_interval,
            metrics=self._assembly.view.metrics,
        )
