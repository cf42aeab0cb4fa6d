"""The server's persistent state: run id, incarnation, committed rounds and the record."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedal.deploy.participation import Participation
from fedal.deploy.plan import ServerPlan
from fedal.engine.loop import Federation
from fedal.errors import ConfigError
from fedal.records.checkpoint import load_newest, newest_json, save_checkpoint
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
        self._began = self._saved_at = time.monotonic()
        self._record: Record | None = None
        self._participation: Participation | None = None

    def open(self) -> None:
        """Opens the folder's run, or creates one with a random id that sites store."""
        text = self._config.with_(eval_every=self._config.eval_interval).to_toml()
        if not self._about.exists():
            self.folder.config.write_text(text)
            about = {"clients": {}, "input_shape": self._task.input_shape, "n_classes": self._task.n_classes}
            write_json(self.folder.environment, {**describe_environment(), **about, "data": self._task.dataset})
            # Incarnations count up from a random number, so a message of another run never matches one of this run.
            write_json(self._about, {"run": secrets.token_hex(16), "incarnation": secrets.randbits(48)})
        else:
            if found := newest_json(self.folder.checkpoints):
                where = f"the config for {self.folder.path}"
                refuse_changed_settings(self._config, found[1].get("settings", {}), where)
            if self.folder.config.read_text() != text:
                raise ConfigError(
                    f"{self.folder.path} holds a run with a different config. Choose another deployment.folder, or "
                    "restore the config."
                )
        self.restore()

    def restore(self) -> None:
        """Returns to the newest committed round, in a new incarnation."""
        self.close()
        self.raise_incarnation()
        found = load_newest(self.folder.checkpoints, lambda text: self._log("warning", text=text))
        if found is None:
            self._record, self._participation = Record(self.folder, {}), Participation(self.folder, 0, self._log)
            self.commit()
            return
        self.rounds, state = found
        self.committed = self.rounds
        self._record = Record(self.folder, state["record_bytes"])
        self._participation = Participation(self.folder, state["record_bytes"].get("participation", 0), self._log)
        self._federation.load_state_dict(state)

    def raise_incarnation(self) -> None:
        """Starts a new incarnation, on disk before any site learns of it; messages of older ones are refused."""
        self.run, before = read_json(self._about, lambda found: (str(found["run"]), int(found["incarnation"])))
        self.incarnation = before + 1
        write_json(self._about, {"run": self.run, "incarnation": self.incarnation})

    def commit(self) -> None:
        assert self._record is not None
        lengths = {**self._record.sync(), "participation": self.participation.sync()}
        state = {**self._federation.state_dict(), "record_bytes": lengths}
        state["settings"] = pinned_settings(self._config)
        save_checkpoint(self.folder.checkpoints, self.rounds, state)
        self.committed, self._saved_at = self.rounds, time.monotonic()
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
        own = {site: found["test_accuracy"] for site, found in shared.items() if "test_accuracy" in found}
        observed = numbers(self._federation.server.observed, "the server")
        self._record.write(
            Moment(self.rounds, self.rounds * self._config.tau, final=self.rounds == self._config.total_rounds),
            self._federation.wire,
            present,
            time.monotonic() - self._began,
            measured=over_clients("own_test_accuracy", list(own.values())) if own else {},
            extra={"incarnation": self.incarnation, **observed},
            clients={
                n: {**({"own_test_accuracy": own[n]} if n in own else {}), **standing.get(n, {})}
                for n in self._federation.roster
            },
        )

    def finish(self) -> None:
        """Writes the summary, which marks the run as complete."""
        final: Any = read_rows(self.folder.metrics)[-1]
        write_json(self.folder.summary, {"status": "complete", "final": final})

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
            self.participation.close()
