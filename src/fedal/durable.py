"""Files that survive a crash with either the old content or the new, never a partial file."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedRandom, FileIO
from pathlib import Path
from typing import Any

from fedal.errors import CheckpointError

TEMPORARY = ".tmp-"
MAX_BYTES = 1 << 28  # of a file that is read as a whole: more than settings or a state without its tensors need


def write_atomically(path: Path, content: bytes, mode: int | None = None) -> None:
    """Writes a temporary file, syncs, renames, syncs the folder. An error leaves the old file and no temporary one."""
    with replacing(path, mode) as file:
        file.write(content)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes several files in a folder, by name; returns their paths."""
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BufferedRandom]:
    """`write_atomically` for content written in pieces: the file is in place when the block ends.

    It has `mode`, less the umask, from the moment it exists: a process that has opened it keeps reading it. Without a
    mode it is as private as its folder. Nothing is written through a link, neither under its name nor a temporary one.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process, with another mode; or a link in someone else's folder
        how = mode_in(path.parent) if mode is None else mode
        with open(temporary, "w+b", opener=partial(_open_new, how)) as file:
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


def mode_in(folder: Path) -> int:
    """The mode of new files in a folder: what others may not do with the folder, they may not do with its files."""
    try:
        return stat.S_IMODE(os.stat(folder).st_mode) & 0o666
    except OSError:  # the folder is missing: opening the file says so
        return 0o666


def private_mode(path: Path) -> int:
    """The mode of a file that others may not read, unless its owner has opened the one that it replaces."""
    return stat.S_IMODE(path.stat().st_mode) & 0o666 if path.is_file() else 0o600


def make_folder(path: Path) -> None:
    """Creates a folder inside a run folder, as private as that one, or accepts the one that is there.

    Refuses a link: the content would land where it leads.
    """
    refuse_link(path, "a folder")
    if not path.exists():
        path.mkdir(stat.S_IMODE(os.stat(path.parent).st_mode) & 0o777, exist_ok=True)
        sync_folder(path.parent)


def refuse_link(path: Path, expected: str = "a file") -> None:
    """Raises CheckpointError for a symbolic link in a run folder, which may come from someone else."""
    if path.is_symlink():
        raise CheckpointError(f"{path} is a symbolic link; expected {expected}. Remove it if you trust this folder.")


def open_in_place(path: Path, flags: int) -> int:
    """The descriptor of a file in a run folder that is changed where it is, created if it is missing.

    Raises CheckpointError for a link of either kind: whatever else it names would be changed too.
    """
    refuse_link(path)
    refuse_pipe(path)
    descriptor = os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), mode_in(path.parent))
    names = os.fstat(descriptor).st_nlink
    if names > 1:
        os.close(descriptor)
        raise CheckpointError(
            f"{path} is one of {names} hard links to a file, which would change under its other names too. If you "
            f"trust this folder, replace it by a copy: `cp {path} {path}.copy && mv {path}.copy {path}`."
        )
    return descriptor


def refuse_pipe(path: Path) -> None:
    """Raises CheckpointError for anything but a file: reading a pipe or a device might never end."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is a folder, a pipe or a device; expected a file.")


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a file that someone else may have written: neither a pipe, which might never end, nor too large.

    Raises OSError.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe or a device; expected a file", str(path))
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", str(path))
        return file.read(limit)


def _open_new(mode: int, name: str, flags: int) -> int:
    return os.open(name, flags | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)


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
    """One JSON object per line. The file is only ever appended to; resuming truncates it to a known length.

    A file that is shorter than that has lost rows, which is an error, or what `lost` reports before the record goes on.
    """

    def __init__(self, path: Path, length: int = 0, lost: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._file = open(path, "a+b", buffering=0, opener=lambda _, flags: open_in_place(path, flags))  # noqa: SIM115
        found = self._file.seek(0, os.SEEK_END)
        if found < length:
            text = f"{path} has {found} bytes; it had {length} when the checkpoint was written, so rows are missing."
            if lost is None:
                self._file.close()
                raise CheckpointError(text)
            lost(text)
            self._file.seek(0)
            length = self._file.readall().rfind(b"\n") + 1  # a torn row would spoil the next one
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
