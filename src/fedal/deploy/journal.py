"""The server's persistent state: run id, incarnation, committed rounds and the record."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedal.deploy.participation import Participation
from fedal.deploy.plan import ServerPlan
from fedal.durable import write_atomically
from fedal.engine.loop import Federation
from fedal.errors import CheckpointError, ConfigError
from fedal.metrics.table import METRICS
from fedal.records.checkpoint import (
    KEEP,
    drop_checkpoints,
    fitting,
    load_checkpoint,
    newest_json,
    save_checkpoint,
    saved_rounds,
    verified_rounds,
)
from fedal.records.environment import describe_environment
from fedal.records.folder import RunFolder, read_json, write_json
from fedal.records.observed import numbers
from fedal.records.pinned import pinned_settings, refuse_changed_settings
from fedal.records.rows import Moment, Record, is_recorded, over_clients
from fedal.records.run import read_rows

SAVE_EVERY_S = 5.0  # checkpoint_every = auto


class Journal:
    """The server's folder. Each checkpoint in it commits a round that every site has saved."""

    def __init__(self, plan: ServerPlan, federation: Federation, log: Callable[..., None]) -> None:
        self._config, self._task, self._federation, self._log = plan.config, plan.task, federation, log
        self.folder = RunFolder(Path(plan.deployment.folder))
        self._about = self.folder.federation
        self.run, self.incarnation, self.rounds, self.committed = "", 0, 0, 0
        self.held: list[int] = []  # the committed rounds that the server can return to, newest first
        self._began = self._saved_at = time.monotonic()
        self._record: Record | None = None
        self._participation: Participation | None = None

    @property
    def keeps_strikes(self) -> bool:
        """Whether the folder holds a run with a file of strikes; those of fedal 0.2 may have none."""
        return self._about.exists() and read_json(self._about, lambda found: bool(found.get("strikes")))

    def open(self) -> None:
        """Opens the folder's run, or creates one with a random id that sites store."""
        text = self._config.with_(eval_every=self._config.eval_interval).to_toml()
        if not self._about.exists():
            self._refuse_lost_run()
            self._create(text)
        else:
            if found := newest_json(self.folder.checkpoints):
                where = f"the config for {self.folder.path}"
                refuse_changed_settings(self._config, found[1].get("settings", {}), where)
            if not self.folder.config.exists():  # the checkpoint has the settings too
                write_atomically(self.folder.config, text.encode())
            if self.folder.config.read_bytes() != text.encode():
                raise ConfigError(
                    f"{self.folder.path} holds a run with a different config. Choose another deployment.folder, or "
                    "restore the config."
                )
        self.restore()

    def restore(self) -> None:
        """Returns to the newest committed round that the server can verify, in a new incarnation."""
        self.close()
        self.raise_incarnation()
        folder = self.folder.checkpoints
        self.held = verified_rounds(folder, lambda text: self._log("warning", text=text))
        if not self.held:
            what = "no checkpoint is intact" if saved_rounds(folder) else "the checkpoints of this run are gone"
            raise CheckpointError(f"{folder}: {what}. {self._advice}")
        self._load(self.held[0])

    def _create(self, config: str) -> None:
        """Creates a run. federation.json comes last: from then on its checkpoints may not be missing."""
        write_atomically(self.folder.config, config.encode())
        about = {"clients": {}, "input_shape": self._task.input_shape, "n_classes": self._task.n_classes}
        write_json(self.folder.environment, {**describe_environment(), **about, "data": self._task.dataset})
        self._open_record({})
        self.commit()
        # Incarnations count up from a random number, so a message of another run never matches one of this run.
        write_json(self._about, {"run": secrets.token_hex(16), "incarnation": secrets.randbits(48)})

    def _refuse_lost_run(self) -> None:
        """Raises CheckpointError for a folder with the checkpoints of a run but not its identity."""
        if any(saved_rounds(self.folder.checkpoints)):  # any but round 0: `_create` was killed
            raise CheckpointError(f"{self._about} is missing, but there are checkpoints. {self._advice}")

    @property
    def _advice(self) -> str:
        return (
            f"Restore {self.folder.path} from a backup. To begin a new run, choose another deployment.folder; every "
            "site then needs another --state folder."
        )

    def return_to(self, rounds: int) -> None:
        """Returns to an earlier commit, because not every site can verify the later ones; removes those."""
        self.close()
        self._load(rounds)
        drop_checkpoints(self.folder.checkpoints, after=rounds)  # sites will save other states for these rounds
        self.held = [held for held in self.held if held <= rounds]

    def _load(self, rounds: int) -> None:
        path = saved_rounds(self.folder.checkpoints)[rounds]
        _, state = load_checkpoint(path)
        self.rounds = self.committed = rounds
        with fitting(path):
            self._open_record(state["record_bytes"])
            self._federation.load_state_dict(state)

    def _open_record(self, lengths: Mapping[str, int]) -> None:
        """Opens the logs of the run. They are not needed to go on: a lost one is reported and begun again."""
        self._record = Record(self.folder, lengths, lambda text: self._log("warning", text=text))
        self._participation = Participation(self.folder, lengths.get("participation", 0), self._log)

    def raise_incarnation(self) -> None:
        """Starts a new incarnation, on disk before any site learns of it; messages of older ones are refused."""
        self.run, before = read_json(self._about, lambda found: (str(found["run"]), int(found["incarnation"])))
        self.incarnation = before + 1
        write_json(self._about, {"run": self.run, "incarnation": self.incarnation, "strikes": True})

    def commit(self) -> None:
        assert self._record is not None
        lengths = {**self._record.sync(), "participation": self.participation.sync()}
        state = {**self._federation.state_dict(), "record_bytes": lengths}
        state["settings"] = pinned_settings(self._config)
        save_checkpoint(self.folder.checkpoints, self.rounds, state)
        self.committed, self._saved_at = self.rounds, time.monotonic()
        self.held = [self.rounds, *(held for held in self.held if held < self.rounds)][:KEEP]
        self._log("committed", round=self.rounds)

    def is_due(self, rounds: int) -> bool:
        """Whether to commit after `rounds` rounds."""
        if rounds == self._config.total_rounds:
            return True
        if isinstance(self._config.checkpoint_every, int):
            return rounds % self._config.checkpoint_every == 0
        return time.monotonic() - self._saved_at >= SAVE_EVERY_S

    def is_reported(self, t: int) -> bool:
        return is_recorded(t, self._config.tau, self._config.eval_interval) or t + 1 == self._config.total_rounds

    @property
    def participation(self) -> Participation:
        assert self._participation is not None
        return self._participation

    def write_rows(
        self, present: list[str], shared: Mapping[str, Mapping[str, float]], standing: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Writes the rows of the completed round: `shared` is what sites report, `standing` their strikes."""
        assert self._record is not None
        own = {site: _own_metrics(found) for site, found in shared.items()}
        columns = {f"own_test_{name}": metric for name, metric in METRICS.items()}
        each = {key: [found[key] for found in own.values() if key in found] for key in columns}
        means = [over_clients(key, values, columns[key].worst) for key, values in each.items() if values]
        observed = numbers(self._federation.server.observed, "the server")
        self._record.write(
            Moment(self.rounds, self.rounds * self._config.tau, final=self.rounds == self._config.total_rounds),
            self._federation.wire,
            present,
            time.monotonic() - self._began,
            measured={key: value for part in means for key, value in part.items()},
            extra={"incarnation": self.incarnation, **observed},
            clients={n: {**own.get(n, {}), **standing.get(n, {})} for n in self._federation.roster},
        )

    def finish(self) -> None:
        """Writes the summary, which marks the run as complete."""
        try:
            rows = read_rows(self.folder.metrics)
        except CheckpointError as error:  # the record is damaged, the models are not
            self._log("warning", text=str(error))
            rows = []
        write_json(self.folder.summary, {"status": "complete", "final": rows[-1] if rows else {}})

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
            self.participation.close()


def _own_metrics(shared: Mapping[str, float]) -> dict[str, float]:
    """What a site shares, as columns of its row; names that fedal does not know are left out."""
    return {f"own_test_{name}": shared[f"test_{name}"] for name in METRICS if f"test_{name}" in shared}
