"""What a site keeps on disk: which run it belongs to, and a checkpoint of every round that the server may return to."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedal.deploy.entering import SitePlan
from fedal.deploy.refusals import Code, Refused
from fedal.engine.player import LocalPlayer
from fedal.errors import CheckpointError, ConfigError
from fedal.learners.base import State
from fedal.records.checkpoint import (
    drop_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    saved_rounds,
    verified_rounds,
)
from fedal.records.folder import RunFolder, read_json, write_json
from fedal.user_code import one_line

GENERATIONS = 3  # the two that the server keeps, and one that it may not have committed yet


class SiteState:
    """The state folder of one site. It is used while it is `open`."""

    def __init__(self, plan: SitePlan, notify: Callable[[str], None]) -> None:
        self._plan, self._notify = plan, notify
        self._folder = RunFolder(plan.state)
        self._about = plan.state / "site.json"
        self.best = plan.state / "best"  # of `BestState`
        self.kept = plan.state / "kept"  # of `--keep-best`
        self.run = ""  # the run whose state the folder holds
        self.rounds = 0  # that the player has completed
        self._player: LocalPlayer | None = None
        self._returned_to: int | None = None  # until the next save

    @contextmanager
    def open(self) -> Iterator[None]:
        """Locks the folder for this process. With `restart`, what it holds is deleted."""
        self._folder.create(private=True)
        if warning := self._folder.open_to_others:
            self._notify(warning)
        checkpoints = self._folder.checkpoints
        with self._folder.locked():
            if self._plan.restart:
                saved = (path for folder in (checkpoints, self.best, self.kept) for path in folder.glob("round-*"))
                for path in (self._about, *saved):
                    path.unlink(missing_ok=True)
            if self._about.exists():
                self.run = run_of(self._about)
            elif any(saved_rounds(checkpoints)):  # any but round 0: killed between the first two files
                raise CheckpointError(
                    f"{self._about} is missing, but there are checkpoints. Restore {self._plan.state} from a backup, "
                    "or start this site from scratch with --restart-from-scratch."
                )
            yield

    def enter(self, player: LocalPlayer, run: str) -> None:
        """Brings a new player to the newest state, or saves its first one."""
        self._player = player
        newest = load_newest(self._folder.checkpoints, self._notify)
        if newest is None:
            self.save(0)
        else:
            self.load(*newest)
        self.run = run
        write_json(self._about, {"run": run, "site": self._plan.name})

    def held(self) -> list[int]:
        """The rounds to whose state this site can return."""
        return verified_rounds(self._folder.checkpoints, self._notify)

    def save(self, rounds: int) -> None:
        save_checkpoint(self._folder.checkpoints, rounds, self.current(), keep=GENERATIONS)
        if self._returned_to is not None:  # what was saved after it has no commit, or not all could verify it
            drop_checkpoints(self._folder.checkpoints, after=self._returned_to, before=rounds)
            self._returned_to = None

    def current(self) -> State:
        assert self._player is not None
        return self._player.states()[self._plan.name]()

    def load(self, rounds: int, state: State) -> None:
        assert self._player is not None
        try:
            self._player.load_states({self._plan.name: state})
        except (LookupError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise CheckpointError(
                f"{self._plan.state}: the state after {rounds} rounds does not fit this model ({one_line(error)}). "
                "Join with the --model that it was saved with, or choose another --state folder."
            ) from None
        self.rounds = rounds

    def return_to(self, rounds: int, *, behind: bool, fresh: bool) -> None:
        """Returns to the state after `rounds` rounds.

        If it is missing, the newest takes its place when the others went on without us (`behind`), and the first one
        when the operator allows a fresh start.
        """
        path = self._folder.checkpoints / f"round-{rounds:07}.json"
        if fresh and not path.exists():
            self.save(rounds)
        if behind and not path.exists() and (newest := load_newest(self._folder.checkpoints, self._notify)):
            self.load(*newest)
            self.save(rounds)
        try:
            self.load(*load_checkpoint(path))
        except CheckpointError as error:  # the next Hello says what we can return to
            raise Refused(Code.WRONG_ROUND, f"{error} The federation returns to round {rounds}.") from None
        self._returned_to = rounds

    def is_damaged(self, rounds: int) -> bool:
        """Whether there is a checkpoint of this round that cannot be read."""
        return (self._folder.checkpoints / f"round-{rounds:07}.json").exists() and rounds not in self.held()


def run_of(path: Path) -> str:
    """The id of the run that a file `site.json` names."""
    return read_json(path, lambda found: str(found["run"]))


def refuse_unwritable(path: Path) -> None:
    """Refuses a file that cannot be written, and creates its folder."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Choose another --save.") from None
