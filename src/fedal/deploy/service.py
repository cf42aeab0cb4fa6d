"""The server of a deployed federation: rounds, commits, recovery.

To commit a round, every site saves its state first. The server writes its own checkpoint when all have acknowledged;
that checkpoint is the commit. Policy `wait`: if a site is missing, the server raises the incarnation, all sites return
to the newest committed round, and recomputation is bit-identical. Policy `continue`: no site goes back. Refused content
is a strike with both policies, a missed deadline with `continue`; a site with too many is in quarantine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedal.data.streams import Samples
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.callbacks import Callbacks, quarantine, state_lost
from fedal.deploy.channel import CONTROL_BYTES
from fedal.deploy.codec import Reader, largest_message
from fedal.deploy.containment import Containment
from fedal.deploy.journal import Journal
from fedal.deploy.pki.identity import ServerIdentity
from fedal.deploy.plan import ServerPlan
from fedal.deploy.player import Due, InTurn, ReadWire, SitePlayer, upload_check
from fedal.deploy.refusal_log import RefusalLog
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import RoundLost, Seat
from fedal.deploy.server import GrpcServer
from fedal.deploy.strikes import Strikes
from fedal.errors import RunError, Stopped
from fedal.machine import refuse_windows
from fedal.methods.server import Uploads
from fedal.precision import dtype_of
from fedal.simulate.build import axis_lengths, build_federation, build_learner, build_server, model_of
from fedal.simulate.checks import refuse_misfits, refuse_unfit_task
from fedal.wire import Wire

LOOKS_INTO_MODELS = {"features", "same-features", "weights", "same-architecture"}
TICK_S = 0.2


def log_line(event: str, **fields: Any) -> None:
    """Logs one JSON object per line to standard error. JSON escapes any control characters in the fields.

    Each line is a single write, because two threads log. A failed write (a full disk) does not stop the server.
    """
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(OSError):
        sys.stderr.write(json.dumps({"time": moment, "event": event, **fields}) + "\n")
        sys.stderr.flush()


class Service:
    """One server process."""

    def __init__(
        self,
        plan: ServerPlan,
        *,
        insecure: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        log: Callable[..., None] = log_line,
    ) -> None:
        config, deployment = plan.config, plan.deployment
        self._config, self._deployment, self._log, self._should_stop = config, deployment, log, should_stop
        refuse_unfit_task(config, plan.task)
        method, dtype = config.method_object(), dtype_of(config.precision)
        public = Samples(plan.public_x, dtype)
        models: dict[str, str] = {}
        width = 0
        if method.needs & LOOKS_INTO_MODELS:  # the config fixes every site's model
            models = {str(table.name): model_of(config, str(table.name), table.model, plan.task)
                      for table in config.client_tables}  # fmt: skip
            learners = {name: build_learner(config, plan.task, name, model, public) for name, model in models.items()}
            width = refuse_misfits(method, learners, models)
        sizes = axis_lengths(config, plan.task, width)
        self.server = build_server(config, plan.task, public, models, width)
        self.wire = ReadWire(method.up, method.down, sizes, dtype)
        check = upload_check(Reader(method.up, sizes, dtype), self.server)
        self.seats = {name: Seat(name, deployment.policy, check, deployment.deadline_s) for name in config.client_names}
        limit, folder = deployment.max_strikes, Path(deployment.folder)
        self.strikes = Strikes(folder, config.client_names, limit, deployment.deadline_s, log)
        self._due, self._benched = Due(), dict[str, int]()  # site -> the round that is run again without it
        self._players = {name: SitePlayer(seat, self._due, self.strikes) for name, seat in self.seats.items()}
        workers = InTurn(lambda: self.grpc_server.flush())
        self._federation = build_federation(config, self._players.values(), self.server, self.wire, workers)
        self._federation.watch.exchanged = self._exchanged
        self._federation.watch.expects = lambda uploads: setattr(self._due, "upload", uploads)
        self._containment = Containment(
            self.server,
            config.client_names,
            lambda: build_server(config, plan.task, public, models, width),
            lambda: Wire(method.up, method.down, sizes, dtype),
        )
        self.journal = Journal(plan, self._federation, log)
        self.folder = self.journal.folder
        self.callbacks = Callbacks(plan, width, self.seats, self.wire, self.journal, self.strikes, RefusalLog(log), log)
        identity = None if insecure else ServerIdentity(Path(deployment.certificates), log)
        largest = largest_message(method.up, sizes, deployment.max_message_bytes)
        self.grpc_server = GrpcServer(self.callbacks, deployment.listen, identity, max(largest, CONTROL_BYTES))

    def run(self) -> None:
        """Serves until the last round is committed and every site has saved its model."""
        self.folder.create(private=True)
        if warning := self.folder.open_to_others:
            self._log("warning", text=warning)
        with self.folder.locked():
            if self.folder.summary.exists():
                self._log("complete", folder=str(self.folder.path))
                return
            try:
                self.strikes.open(begun=self.journal.keeps_strikes)
                self.journal.open()
                self.grpc_server.open()
                run, plan = self.journal.run, self.callbacks.plan
                named = {"public_sha256": plan.public_sha256, "contract": plan.contract.name}
                self._log("listening", port=self.grpc_server.port, run=run, **named)
                try:
                    self._run_rounds()
                finally:
                    self.grpc_server.close()
            finally:
                self.journal.close()

    def _run_rounds(self) -> None:
        waits = self._deployment.policy == "wait"
        restore = waits
        while self.journal.rounds < self._config.total_rounds:
            self._gather()
            if restore and not self._agree():
                continue
            try:
                self._run_round(restore)
                restore = False
            except RoundLost as lost:
                self._log("round lost", reason=str(lost), returns_to=self.journal.committed)
                for seat in self.seats.values():
                    seat.drop()
                if waits:
                    self.journal.restore()
                    restore = True
                else:
                    self._containment.undo()
                    self.journal.raise_incarnation()
        self._finish()

    def _run_round(self, restore: bool) -> None:
        t, total = self.journal.rounds, self._config.total_rounds
        save = self.journal.is_due(t + 1) or self._should_stop() or t in self._benched.values()  # for its return
        report = self.journal.is_reported(t)
        for player in self._players.values():
            player.next_round = pb.Begin(
                incarnation=self.journal.incarnation, round=t, restore=restore, save=save, report=report
            )  # fmt: skip
        self.callbacks.state, self.callbacks.missing = "training", ()
        present = self._run_exchanges(t)
        self.journal.rounds = t + 1
        if report:
            shared = {name: self._players[name].metrics for name in present}
            self.journal.write_rows(present, shared, self._standing())
        if save:
            self.journal.commit()
            for name in self.seats:
                (self.strikes.caught_up if name in present else self.strikes.sits_out)(name)
        if self._should_stop() and save and t + 1 < total:
            raise Stopped(f"stopped after round {t + 1}. Rerun the same `fedal serve` to resume.")

    def _run_exchanges(self, t: int) -> list[str]:
        """Runs the exchanges of round t, and records who took part in which. Returns the sites that completed it."""
        waits = self._deployment.policy == "wait"
        absent = {name for name in self.seats if self._is_out(name)}
        if not waits:
            absent |= {name for name, seat in self.seats.items() if not seat.ready}
        self._containment.begin()
        try:
            present = self._federation.run_round(
                t, (lambda n, exchange: exchange == 0 and n in absent) if absent else None
            )
            if len(present) < self._deployment.min_clients and self._config.method_object().exchanges:
                raise RoundLost(f"{Code.COHORT_TOO_SMALL}: only {len(present)} sites remain")
        except Exception as error:
            lost = error if isinstance(error, RoundLost) else self._blame(t, error)
            if not waits:
                took_part = [player.answered for name, player in self._players.items() if name not in absent]
                self.journal.participation.lost(t, self._missed(absent), max(took_part, default=0))
            raise lost from None
        self.journal.participation.completed(t, self._missed(absent))
        return present

    def _missed(self, absent: set[str]) -> dict[str, int]:
        """The first exchange of the round that each site missed."""
        missed = {name: 0 if name in absent else player.missed for name, player in self._players.items()}
        return {name: exchange for name, exchange in missed.items() if exchange is not None}

    def _is_out(self, site: str) -> bool:
        """Whether the next round is run without this site, whatever the policy."""
        return self.journal.rounds <= self._benched.get(site, -1) or self.strikes.is_quarantined(site)

    def _blame(self, t: int, error: Exception) -> RoundLost:
        """Finds the site whose content makes the server's half raise; its round is lost and run without it.

        Raises the error itself if no site is the cause.
        """
        if not self._containment.is_cause(t):
            raise error
        site = self._containment.culprit(t)
        if site is None:
            path = self.folder.path / f"uploads-of-round-{t}.npz"
            self._containment.write_uploads(path)
            raise RunError(
                f"{error} No single site is the cause, so this is a defect of fedal. Please report it; the uploads of "
                f"the round are in {path}."
            ) from error
        refused = Refused(Code.CONTENT, f"the server cannot use this upload ({error})")
        self.callbacks.refusals.add(site, refused)
        self.strikes.refused(site, str(refused))
        self.strikes.sits_out(site)
        self.seats[site].expel(refused)
        if sum(not self._is_out(name) for name in self.seats) > self._deployment.min_clients:
            self._benched[site] = t
        return RoundLost(f"{site}: {refused}")

    def _standing(self) -> dict[str, dict[str, Any]]:
        """What the record says about sites with strikes."""
        return {
            name: {"strikes": count, "quarantined": self.strikes.is_quarantined(name)}
            for name in self.seats
            if (count := self.strikes.count(name)) or self.strikes.is_quarantined(name)
        }

    def _gather(self) -> None:
        """Waits for all sites; with policy `continue`, once the deadline has passed, for min_clients of them."""
        began, logged, rounds = time.monotonic(), False, self.journal.rounds
        while True:
            self._refuse_too_many_quarantined()
            out = {name for name in self.seats if self._is_out(name)}
            missing = [name for name, seat in self.seats.items() if name not in out and not seat.ready]
            enough = len(self.seats) - len(out) - len(missing) >= self._deployment.min_clients
            late = rounds > 0 or time.monotonic() - began > self._deployment.deadline_s
            if not missing or (self._deployment.policy == "continue" and enough and late):
                return
            if self._should_stop():
                raise Stopped(f"stopped after round {rounds}. Rerun the same `fedal serve` to resume.")
            if not logged:
                logged = True
                self._log("waiting", missing=missing)
            self.callbacks.state, self.callbacks.missing = "waiting", missing
            self.seats[missing[0]].wait_until(lambda seat: seat.ready, TICK_S)

    def _agree(self) -> bool:
        """Goes back to the newest committed round that all can verify. Returns whether there is one.

        A site that cannot verify the newest one gets a strike, as for an absence: it costs the others some rounds.
        """
        seats = {name: seat for name, seat in self.seats.items() if not self._is_out(name)}
        newest, held = self.journal.committed, self.journal.held
        lacking = [name for name, seat in seats.items() if not seat.holds(newest)]
        common = [rounds for rounds in held if all(seat.holds(rounds) for seat in seats.values())]
        expelled = False
        for name in lacking:
            self.strikes.absent(name, f"it cannot verify its state after round {newest}.")
            if not common or self.strikes.is_quarantined(name):
                own = [rounds for rounds in held if seats[name].holds(rounds)]
                seats[name].expel(state_lost(own, [newest]) if not common else quarantine(self.strikes, name))
                expelled = True
        if expelled:
            return False
        if lacking:
            self._log("going back", to=common[0], because_of=lacking)
            self.journal.return_to(common[0])
        return True

    def _refuse_too_many_quarantined(self) -> None:
        quarantined = self.strikes.quarantined()
        if quarantined and len(self.seats) - len(quarantined) < self._deployment.min_clients:
            raise RunError(
                f"{len(quarantined)} of {len(self.seats)} sites are in quarantine ({', '.join(quarantined)}), so fewer "
                f"than min_clients = {self._deployment.min_clients} remain. Their strikes are in "
                f"{self.folder.path / 'strikes.json'}. Readmit a site with `fedal readmit SITE --config FILE`, then "
                "rerun `fedal serve`."
            )

    def _exchanged(self, uploads: Uploads) -> None:
        """Called before the server's half gets the uploads."""
        self._refuse_small_cohort(uploads)
        self._containment.keep(uploads)

    def _refuse_small_cohort(self, uploads: Uploads) -> None:
        """Raises RoundLost below min_clients: no site gets a reply."""
        if len(uploads) < self._deployment.min_clients:
            raise RoundLost(f"{Code.COHORT_TOO_SMALL}: only {len(uploads)} sites answered")

    def _finish(self) -> None:
        """Announces the end of the run to all sites, and waits until each has saved its model."""
        self.callbacks.state, self.callbacks.missing, total = "finished", (), self._config.total_rounds
        message = pb.FromServer(finished=pb.Finished(rounds=total))
        for seat in self.seats.values():
            seat.ask(message, None)
        self.grpc_server.flush()
        end = time.monotonic() + self._deployment.deadline_s
        for name, seat in self.seats.items():
            while not seat.wait_until(lambda seat: seat.left, TICK_S) and not self.strikes.is_quarantined(name):
                if self._should_stop():
                    raise Stopped(
                        "all rounds are committed, but some sites lack their model. Rerun `fedal serve` for them."
                    )
                if self._deployment.policy == "continue" and time.monotonic() > end:
                    break
        self.journal.finish()
        self._log("finished", rounds=total)


def serve(plan: ServerPlan, *, insecure: bool = False, should_stop: Callable[[], bool] = lambda: False) -> None:
    refuse_windows()
    torch.set_num_threads(1)  # 1 and 2 intra-op threads give different bits
    Service(plan, insecure=insecure, should_stop=should_stop).run()
