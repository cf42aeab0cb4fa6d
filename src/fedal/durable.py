"""Files that survive a crash with either the old content or the new, never a partial file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedRandom, FileIO
from pathlib import Path
from typing import Any

from fedal.errors import CheckpointError

TEMPORARY = ".tmp-"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a temporary file, syncs, renames, syncs the folder. An error leaves the old file and no temporary one."""
    with replacing(path) as file:
        file.write(content)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes several files in a folder, by name; returns their paths."""
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BufferedRandom]:
    """`write_atomically` for content written in pieces: the file is in place when the block ends.

    It has `mode`, less the umask, from the moment it exists: a process that has opened it keeps reading it.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        if mode != 0o666:  # a file that a killed process left behind keeps the mode it has
            temporary.unlink(missing_ok=True)
        with open(temporary, "w+b", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # the folder itself may be missing or no folder
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename, error.filename2 = str(path), None  # the user knows no temporary file
        _add_path(error, path)
        raise
    sync_folder(path.parent)


def append(path: Path, content: bytes) -> None:
    """Appends to a file and syncs it to disk. After an error, part of the content may have been written."""
    try:
        with open(path, "ab", buffering=0) as file:
            _write_all(file, content)
            os.fsync(file.fileno())
    except OSError as error:
        _add_path(error, path)
        raise


def _write_all(file: FileIO, content: bytes) -> None:
    """Writes until nothing is left. A disk that fills up writes a part first and raises on the next attempt."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _add_path(error: BaseException, path: Path) -> None:
    """Adds the path to a failed write's error, so that the user knows which disk is full."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RecordFile:
    """One JSON object per line. The file is only ever appended to; resuming truncates it to a known length."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self._path = path
        if path.is_symlink():  # of a folder from someone else: the record would be cut where the link leads
            raise CheckpointError(f"{path} is a symbolic link; expected a file. Remove it if you trust this folder.")
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the whole run
        found = self._file.seek(0, os.SEEK_END)
        if found < length:
            self._file.close()
            raise CheckpointError(
                f"{path} has {found} bytes; it had {length} when the checkpoint was written, so rows are missing."
            )
        self._file.truncate(length)
        self._file.seek(length)

    def append(self, row: dict[str, Any]) -> None:
        try:
            _write_all(self._file, json.dumps(row).encode() + b"\n")
        except OSError as error:
            _add_path(error, self._path)
            raise

    def sync(self) -> int:
        """Syncs the file; returns the length that is now on disk."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
