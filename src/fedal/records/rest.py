"""The states of clients at rest: two files for each, named after the client and the rounds done when they were written.

A checkpoint refers to these files by name and checksum instead of holding the states, so it costs what has changed
since the last one, not what the roster holds. A file is removed only when no checkpoint refers to it, after a newer one
is committed or when a killed process left it. So a kill at any moment leaves the files of the newest checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedal.durable import TEMPORARY, read_bounded, sync_folder
from fedal.errors import CheckpointError, NonFiniteError
from fedal.finite import is_finite
from fedal.lazy import Tensor
from fedal.learners.base import State
from fedal.records.checkpoint import TENSORS, put_tensors, take_tensors
from fedal.records.tensor_file import open_tensors, write_tensor

AT_REST = "at_rest"  # key of a reference
NAME = re.compile(r"(.+\.\d{7,})(\.json|\.tensors)")


class RestFolder:
    """The folder of one run. `at` says which round the next states are of."""

    def __init__(self, path: Path) -> None:
        self._path, self._round = path, 0
        self._newest: dict[str, State] = {}  # client -> the reference to its newest state
        self._unsaved: set[str] = set()  # stems of files that no checkpoint refers to
        self._unchecked: set[str] = set()  # stems of files that an earlier process wrote

    def open(self) -> None:
        """Makes the folder if it does not exist."""
        if self._path.is_symlink():
            raise CheckpointError(
                f"{self._path} is a symbolic link; expected a folder. Remove it if you trust this folder."
            )
        self._path.mkdir(exist_ok=True)

    def at(self, rounds: int) -> None:
        """States that are written from now on are those after this many rounds."""
        self._round = rounds

    def write(self, client: str, state: State) -> None:
        """Writes the newest state of a client; a reader of an older one keeps it."""
        stem = f"{client}.{self._round:07}"
        temporary = self._path / f"{TEMPORARY}{client}"
        with temporary.open("w+b") as file:

            def write(name: str, tensor: Tensor) -> dict[str, Any]:
                if tensor.is_floating_point() and not is_finite(tensor):
                    raise NonFiniteError(
                        f'client "{client}": {name} has non-finite values after round {self._round}. '
                        "A smaller lr usually helps."
                    )
                return write_tensor(file, name, tensor)

            plain = take_tensors(state, "", write)
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(temporary, self._path / f"{stem}{TENSORS}")
        text = json.dumps({"tensors_sha256": sha256, "state": plain}).encode()
        (self._path / f"{stem}.json").write_bytes(text)
        self._forget(client, but=stem)
        self._newest[client] = {AT_REST: stem, "sha256": hashlib.sha256(text).hexdigest()}
        self._unsaved.add(stem)

    def read(self, client: str) -> State | None:
        """The newest state of a client; None if it has none yet. Its tensors are memory-mapped."""
        return self.state_of(self._newest[client]) if client in self._newest else None

    def expect(self, clients: Iterable[str]) -> None:
        """Lets the system read the newest states of these clients into its cache while others learn."""
        if not hasattr(os, "posix_fadvise"):
            return
        for client in clients:
            stem = self._newest.get(client, {}).get(AT_REST)
            if stem is None:
                continue
            try:
                handle = os.open(self._path / f"{stem}{TENSORS}", os.O_RDONLY | os.O_NONBLOCK)
            except OSError:  # `read` says what is wrong with it
                continue
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(handle)

    def state_of(self, reference: Mapping[str, Any]) -> State:
        """The state behind a reference; raises CheckpointError if a file of an earlier process is damaged."""
        stem = str(reference[AT_REST])
        rest, tensors = self._path / f"{stem}.json", self._path / f"{stem}{TENSORS}"
        if not (rest.is_file() and tensors.is_file()):  # a pipe would block
            raise CheckpointError(f"{rest}: this, or the file of its tensors, is missing or no file.")
        text = read_bounded(rest)
        if stem in self._unchecked and hashlib.sha256(text).hexdigest() != reference["sha256"]:
            raise CheckpointError(f"{rest}: the checksum does not match; the file is damaged.")
        found = json.loads(text)
        if stem in self._unchecked:
            with tensors.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != found["tensors_sha256"]:
                raise CheckpointError(f"{tensors}: the checksum does not match; the file is damaged.")
            self._unchecked.discard(stem)
        state: State = put_tensors(found["state"], open_tensors(tensors))
        return state

    def reference(self, client: str) -> State:
        """What a checkpoint holds of a client at rest; empty for one that has no state yet."""
        return self._newest.get(client, {})

    def adopt(self, client: str, reference: State) -> None:
        """Goes on from what a checkpoint refers to. The files' checksums are verified when they are first read."""
        stem = str(reference[AT_REST])
        match = NAME.fullmatch(f"{stem}.json")
        if match is None or not stem.startswith(f"{client}.") or "/" in stem:
            raise CheckpointError(f'the state of client "{client}" is said to be in {stem!r}; expected its own files.')
        self._newest[client] = {AT_REST: stem, "sha256": str(reference["sha256"])}
        self._unchecked.add(stem)

    def remove(self, client: str) -> None:
        """The client has no state yet."""
        self._forget(client)
        self._newest.pop(client, None)

    def sync(self) -> None:
        """Makes all files durable that the next checkpoint will refer to and no earlier one did."""
        for stem in self._unsaved:
            for path in (self._path / f"{stem}.json", self._path / f"{stem}{TENSORS}"):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        sync_folder(self._path)

    def saved(self, checkpoints: Iterable[Mapping[str, Any]]) -> None:
        """Removes all files to which none of these states of checkpoints refers."""
        kept = {
            str(own[AT_REST])
            for state in checkpoints
            for own in state["clients"].values()
            if isinstance(own, dict) and AT_REST in own
        }
        for path in [*self._path.iterdir()]:
            match = NAME.fullmatch(path.name)
            if (match is not None and match[1] not in kept) or path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)
        self._unsaved.clear()

    def _forget(self, client: str, but: str = "") -> None:
        """Removes a state that no checkpoint refers to, because a newer one takes its place."""
        stem = str(self._newest.get(client, {}).get(AT_REST, ""))
        if stem in self._unsaved and stem != but:
            (self._path / f"{stem}.json").unlink(missing_ok=True)
            (self._path / f"{stem}{TENSORS}").unlink(missing_ok=True)
            self._unsaved.discard(stem)


def resolved(clients: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The clients' states of a checkpoint, with the states themselves in place of references to files at rest."""
    files = RestFolder(folder)
    for name, own in clients.items():
        if isinstance(own, dict) and AT_REST in own:
            files.adopt(name, own)
    return {name: files.read(name) if name in files._newest else own for name, own in clients.items()}
