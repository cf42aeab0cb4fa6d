"""Compares a dataset's files on disk with the expected ones, without parsing their formats."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

State = Literal["ok", "missing", "wrong size", "wrong checksum", "wrong count"]


@dataclass(frozen=True)
class Finding:
    """One expected file or folder and its state; `found` and `expected` are text for the user."""

    path: Path
    state: State
    found: str
    expected: str

    @property
    def ok(self) -> bool:
        return self.state == "ok"


@dataclass(frozen=True)
class File:
    """A file identified by its checksum (`md5:...` or `sha256:...`) and, where published, its size."""

    path: str
    checksum: str
    size_bytes: int | None = None

    @property
    def expected(self) -> str:
        return self.checksum if self.size_bytes is None else f"{self.size_bytes:,} bytes, {self.checksum}"

    def is_present(self, root: Path) -> bool:
        return (root / self.path).is_file()

    def holds(self, member: str) -> bool:
        """Whether an archive member of this name belongs here."""
        return member == self.path

    def matches(self, content: bytes) -> bool:
        """Whether these are the bytes of this file."""
        algorithm, _, digest = self.checksum.partition(":")
        return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == digest

    def inspect(self, root: Path) -> Finding:
        """The state of the file. A wrong size takes precedence, to tell a truncated file from a changed one."""
        path = root / self.path
        if not path.is_file():
            return Finding(path, "missing", "nothing", self.expected)
        size, checksum = path.stat().st_size, checksum_of(path, self.checksum.partition(":")[0])
        state: State = "ok" if checksum == self.checksum else "wrong checksum"
        if self.size_bytes not in (None, size):
            state = "wrong size"
        return Finding(path, state, f"{size:,} bytes, {checksum}", self.expected)


@dataclass(frozen=True)
class Folder:
    """A folder of many files without published checksums, identified by their number."""

    path: str
    suffix: str
    count: int

    @property
    def expected(self) -> str:
        return f"{self.count:,} {self.suffix} files"

    def is_present(self, root: Path) -> bool:
        return _count(root / self.path, self.suffix) > 0

    def holds(self, member: str) -> bool:
        """Whether an archive member of this name belongs here."""
        path = PurePosixPath(member)
        return str(path.parent) == self.path and path.name.endswith(self.suffix)

    def inspect(self, root: Path) -> Finding:
        count = _count(root / self.path, self.suffix)
        state: State = "ok" if count == self.count else "wrong count" if count else "missing"
        return Finding(root / self.path, state, f"{count:,} {self.suffix} files", self.expected)


def _count(folder: Path, suffix: str) -> int:
    return sum(name.endswith(suffix) for name in os.listdir(folder)) if folder.is_dir() else 0


def checksum_of(path: Path, algorithm: str) -> str:
    """`algorithm:hexdigest` of a file, read in chunks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, partial(hashlib.new, algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes next to the target and renames, so that a reader sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
