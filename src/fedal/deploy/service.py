"""The server of a deployed federation: rounds, commits, recovery.

A round that is saved is written by every site first; the server's own checkpoint, written when all have acknowledged,
is the commit. Policy `wait`: when a site is missing, the server raises the incarnation, everybody returns to the newest
committed round, and recomputation gives the same bits. Policy `continue`: nobody goes back.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedal import data as data_sources
from fedal.config import Config
from fedal.data.streams import Samples
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import CONTROL_BYTES, PROTOCOL_MINOR
from fedal.deploy.codec import Reader, largest_message, manifest
from fedal.deploy.pki.identity import ServerIdentity
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import InTurn, ReadWire, RemoteClient, RoundLost, Seat
from fedal.deploy.server import Desk, Reception
from fedal.deploy.settings import Deployment
from fedal.durable import RecordFile
from fedal.engine.loop import Federation
from fedal.errors import CheckpointError, ConfigError, Stopped
from fedal.machine import refuse_windows
from fedal.messages import Message
from fedal.methods.server import Uploads
from fedal.records.checkpoint import load_newest, save_checkpoint
from fedal.records.folder import RunFolder, named_code, write_json
from fedal.simulate.assemble import (
    DTYPES,
    axis_lengths,
    build_learner,
    build_server,
    model_of,
    refuse_misfits,
    refuse_unfit_task,
)
from fedal.simulate.world import Task, prepare_world

SETTINGS = (
    "method", "seed", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "precision", "channels_last",
    "fused", "options",
)  # fmt: skip
"""What a site is told of the config: what decides its numbers, and nothing that names code or files."""

SAVE_EVERY_S = 5.0  # checkpoint_every = auto
TICK_S = 0.2


def log_line(event: str, **fields: Any) -> None:
    """One JSON object per line on standard error: no control character of anybody's text gets through.

    A line is one write, because two threads log. One that cannot be written (a full disk) is no reason to stop.
    """
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(OSError):
        sys.stderr.write(json.dumps({"time": moment, "event": event, **fields}) + "\n")
        sys.stderr.flush()


@dataclass(frozen=True)
class Plan:
    """What the server knows before anybody joins."""

    config: Config
    deployment: Deployment
    task: Task
    public_x: NDArray[np.float32]


def plan_federation(config: Config, deployment: Deployment) -> Plan:
    """The public set and the task. Without n_classes they come from the config's data set, as in `fedal run`."""
    code = named_code(config.model_dump(mode="json"))
    if code and config.method in code:
        raise ConfigError(f'method "{code[0]}" is code of your own; sites import nothing that a server names.')
    if deployment.n_classes is not None and config.public is not None:
        public_x = data_sources.load_public_npz(config.public)
        return Plan(config, deployment, Task("own", public_x.shape[1:], deployment.n_classes), public_x)
    world = prepare_world(config)
    return Plan(config, deployment, world.task, world.public_x)


class Service:
    """One server process."""

    def __init__(
        self,
        plan: Plan,
        *,
        insecure: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        log: Callable[..., None] = log_line,
    ) -> None:
        config, deployment = plan.config, plan.deployment
        self._config, self._deployment, self._task, self._log = config, deployment, plan.task, log
        self._should_stop = should_stop
        refuse_unfit_task(config, plan.task)
        method, dtype = config.method_object(), DTYPES[config.precision]
        public = Samples(plan.public_x, dtype)
        names: dict[str, str] = {}
        self._feature_width = 0
        if method.needs & {"features", "same-features", "weights", "same-architecture"}:  # one model for all, by config
            names = {str(table.name): model_of(config, str(table.name), table.model, plan.task)
                     for table in config.client_tables}  # fmt: skip
            learners = {name: build_learner(config, plan.task, name, model, public) for name, model in names.items()}
            self._feature_width = refuse_misfits(method, learners, names)
        self.server = build_server(config, plan.task, public, names, self._feature_width)
        self._expected_batch = lru_cache(maxsize=1)(self.server.expected_batch)  # one for all uploads of an exchange
        sizes = axis_lengths(config, plan.task, self._feature_width)
        self.wire = ReadWire(method.up, method.down, sizes, dtype)
        self._reader = Reader(method.up, sizes, dtype)
        self.seats = {
            name: Seat(name, deployment.policy, self._validate, deployment.deadline_s) for name in config.client_names
        }
        self._clients = {name: RemoteClient(seat) for name, seat in self.seats.items()}
        self.folder = RunFolder(Path(deployment.folder))
        self._public_sha256 = manifest(plan.public_x)
        identity = None if insecure else ServerIdentity(Path(deployment.certificates), log)
        largest = largest_message(method.up, sizes, deployment.max_message_bytes)
        desk = Desk(
            deployment.federation, self.seats, plan.public_x, self._welcome, self._admit, self._status, log
        )  # fmt: skip
        self.reception = Reception(desk, deployment.listen, identity, max(largest, CONTROL_BYTES))
        self._run, self._incarnation, self._rounds, self._state = "", 0, 0, "starting"
        self._began = self._saved_at = time.monotonic()

    @property
    def total_rounds(self) -> int:
        return self._config.total_rounds

    def play(self) -> None:
        """Serves until the last round is committed and every site has its model."""
        self.folder.create()
        with self.folder.locked():
            if self.folder.summary.exists():
                self._log("complete", folder=str(self.folder.path))
                return
            self._federation = Federation(
                self._clients, self.server, self.wire, InTurn(self.reception.flush), self._refuse_small_cohort
            )
            self._open_folder()
            self._restore()
            self.reception.open()
            self._log("listening", port=self.reception.port, run=self._run, public_sha256=self._public_sha256)
            try:
                self._play_on()
            finally:
                self.reception.close()
                self._record.close()

    def _play_on(self) -> None:
        restore = self._deployment.policy == "wait"
        while self._rounds < self.total_rounds:
            self._gather()
            try:
                self._play_round(restore)
                restore = False
            except RoundLost as lost:
                self._log("round lost", reason=str(lost), returns_to=self._committed)
                for seat in self.seats.values():
                    seat.drop()
                if self._deployment.policy == "wait":
                    self._record.close()
                    self._restore()
                    restore = True
                else:
                    self._raise_incarnation()
        self._finish()

    def _play_round(self, restore: bool) -> None:
        t = self._rounds
        save, report = self._save_is_due(t + 1), self._is_reported(t)
        for client in self._clients.values():
            client.begin = pb.Begin(
                incarnation=self._incarnation, round=t, restore=restore, save=save, report=report
            )  # fmt: skip
        self._state = "training"
        absent = {name for name, seat in self.seats.items() if not seat.connected}
        skips = absent and self._deployment.policy == "continue"
        present = self._federation.play_round(t, (lambda n, exchange: exchange == 0 and n in absent) if skips else None)
        if len(present) < self._deployment.min_clients and self._config.method_object().exchanges:
            raise RoundLost(f"{Code.COHORT_TOO_SMALL}: {len(present)} sites are left")
        self._rounds = t + 1
        if report or self._rounds == self.total_rounds:
            self._record.append(self._row(present))
        if save:
            self._save()
        if self._should_stop() and save and self._rounds < self.total_rounds:
            raise Stopped(f"stopped after round {self._rounds}. Continue with the same `fedal serve`.")

    # who is there

    def _gather(self) -> None:
        """Waits for all sites; with policy `continue`, after the deadline for enough of them."""
        began, told = time.monotonic(), False
        while True:
            missing = [name for name, seat in self.seats.items() if not seat.connected]
            enough = len(self.seats) - len(missing) >= self._deployment.min_clients
            late = self._rounds > 0 or time.monotonic() - began > self._deployment.deadline_s
            if not missing or (self._deployment.policy == "continue" and enough and late):
                return
            if self._should_stop():
                raise Stopped(f"stopped after round {self._rounds}. Continue with the same `fedal serve`.")
            if not told:
                self._state, told = f"waiting for {', '.join(missing)}", True
                self._log("waiting", missing=missing)
            self.seats[missing[0]].wait_until(lambda seat: seat.connected, TICK_S)

    def _refuse_small_cohort(self, uploads: Uploads) -> None:
        """Called before the server's half sees the uploads: below min_clients nobody is answered."""
        if len(uploads) < self._deployment.min_clients:
            raise RoundLost(f"{Code.COHORT_TOO_SMALL}: {len(uploads)} sites answered")

    def _admit(self, hello: pb.Hello) -> None:
        if hello.run and hello.run != self._run and not hello.restart:
            raise Refused(Code.OTHER_RUN, "this site holds the state of another run. Choose another --state folder.")
        held = self._committed == 0 or self._committed in hello.rounds_held or hello.restart
        if not held and self._deployment.policy == "wait":
            raise Refused(
                Code.STATE_LOST,
                f"this site has no state of round {self._committed}. Restore its --state folder, or let it begin anew "
                "with --restart-from-scratch.",
            )
        if not hello.rounds_held and self._committed > 0 and not hello.restart:
            raise Refused(Code.STATE_LOST, "this site has lost its state. --restart-from-scratch lets it begin anew.")

    def _welcome(self) -> pb.Welcome:
        settings = self._config.model_dump(mode="json", include=set(SETTINGS))
        return pb.Welcome(
            protocol_minor=PROTOCOL_MINOR,
            run=self._run,
            settings=json.dumps(settings),
            dataset=self._task.dataset,
            input_shape=self._task.input_shape,
            n_classes=self._task.n_classes,
            public_samples=len(self.reception._desk.public_x),
            public_sha256=self._public_sha256,
            total_rounds=self.total_rounds,
            feature_width=self._feature_width,
        )

    def _validate(self, site: str, upload: pb.Upload) -> Message:
        message = self._reader.read(upload.payload)
        expected = self._expected_batch(upload.round, upload.exchange)
        if (upload.batch or None if message.about_batch else None) != expected:
            raise Refused(Code.WRONG_BATCH, f"an answer about batch {upload.batch[:40]!r}; expected {expected}.")
        return message

    def _status(self) -> pb.StatusReply:
        reply = pb.StatusReply(
            federation=self._deployment.federation,
            incarnation=self._incarnation,
            round=self._rounds,
            total_rounds=self.total_rounds,
            state=self._state + self._slow(),
        )
        for name, seat in self.seats.items():
            up, down = self.wire.up_bytes[name], self.wire.down_bytes[name]
            reply.sites.add(site=name, connected=seat.connected, answer_ms=seat.answer_ms, up_bytes=up,
                            down_bytes=down, refused=seat.refused)  # fmt: skip
        return reply

    def _slow(self) -> str:
        """Who keeps the others waiting, for the operator."""
        waits = {name: seat.waited_s for name, seat in self.seats.items()}
        late = [f"{waited:.0f} s for {name}" for name, waited in waits.items() if waited >= 1]
        return f", waiting {', '.join(late)}" if late else ""

    # state

    def _open_folder(self) -> None:
        """A folder continues its own run only; a new one gets a name that sites remember."""
        about = self.folder.path / "federation.json"
        text = self._config.to_toml()
        if not about.exists():
            self.folder.config.write_text(text)
            # Incarnations are counted from a random number: no message of another run can belong to one of this run.
            write_json(about, {"run": secrets.token_hex(16), "incarnation": secrets.randbits(48)})
        elif self.folder.config.read_text() != text:
            raise ConfigError(
                f"{self.folder.path} holds a run of another config. Choose another deployment.folder, or put the "
                "config back."
            )

    def _restore(self) -> None:
        """Back to the newest committed round, in a new incarnation."""
        self._raise_incarnation()
        found = load_newest(self.folder.checkpoints, lambda text: self._log("warning", text=text))
        if found is None:
            found = 0, {**self._snapshot(), "record_bytes": 0}
            save_checkpoint(self.folder.checkpoints, *found)
        self._rounds, state = found
        self._committed = self._rounds
        self._record = RecordFile(self.folder.metrics, int(state["record_bytes"]))
        self.server.load_state_dict(state["server"])
        self.wire.load_state_dict(state["wire"])

    def _raise_incarnation(self) -> None:
        """On disk before anybody hears of it: what belongs to an older one is refused from now on."""
        about = self.folder.path / "federation.json"
        try:
            content = json.loads(about.read_bytes())
            self._run, self._incarnation = str(content["run"]), int(content["incarnation"]) + 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{about}: cannot be read ({type(error).__name__}: {error}).") from None
        write_json(about, {**content, "incarnation": self._incarnation})

    def _snapshot(self) -> dict[str, Any]:
        return {"server": self.server.state_dict(), "wire": self.wire.state_dict()}

    def _save(self) -> None:
        save_checkpoint(
            self.folder.checkpoints, self._rounds, {**self._snapshot(), "record_bytes": self._record.sync()}
        )
        self._committed, self._saved_at = self._rounds, time.monotonic()
        self._log("committed", round=self._rounds)

    def _save_is_due(self, rounds: int) -> bool:
        if rounds == self.total_rounds or self._should_stop():
            return True
        if isinstance(self._config.checkpoint_every, int):
            return rounds % self._config.checkpoint_every == 0
        return time.monotonic() - self._saved_at >= SAVE_EVERY_S

    def _is_reported(self, t: int) -> bool:
        tau, every = self._config.tau, self._config.eval_every
        return (t + 1) * tau // every > t * tau // every or t + 1 == self.total_rounds

    def _row(self, present: list[str]) -> dict[str, Any]:
        row: dict[str, Any] = {
            "round": self._rounds,
            "iteration": self._rounds * self._config.tau,
            "phase": "after_global",
            "final": self._rounds == self.total_rounds,
            "participants": present,
            "incarnation": self._incarnation,
            "up_bytes": self.wire.up_bytes.total(),
            "down_bytes": self.wire.down_bytes.total(),
            **{name: float(value) for name, value in self.server.observed.items()},
            "seconds": round(time.monotonic() - self._began, 3),
        }
        shared = {name: self._clients[name].metrics for name in present if self._clients[name].metrics}
        if shared:
            row["sites"] = shared
        return row

    def _finish(self) -> None:
        """Tells all sites that the run is over, and waits until each has written its model."""
        self._state = "finished"
        message = pb.FromServer(finished=pb.Finished(rounds=self.total_rounds))
        for seat in self.seats.values():
            seat.ask(message, None)
        self.reception.flush()
        end = time.monotonic() + self._deployment.deadline_s
        for seat in self.seats.values():
            while not seat.wait_until(lambda seat: seat.left, TICK_S):
                if self._should_stop():
                    raise Stopped("all rounds are committed, but not every site has its model. Serve again for those.")
                if self._deployment.policy == "continue" and time.monotonic() > end:
                    break
        write_json(self.folder.summary, {"status": "complete", "rounds": self.total_rounds})
        self._log("finished", rounds=self.total_rounds)


def serve(plan: Plan, *, insecure: bool = False, should_stop: Callable[[], bool] = lambda: False) -> None:
    refuse_windows()
    torch.set_num_threads(1)  # 1 and 2 intra-op threads give different bits
    Service(plan, insecure=insecure, should_stop=should_stop).play()
