"""Reads named members of downloaded archives. No file is ever extracted under a name that the archive chooses."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from fedal.data.files import File, Folder, write_atomically


def members(archive: Path | IO[bytes], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of each regular member that `wanted` accepts; skips links, devices and the rest."""
    opened = tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive)  # noqa: SIM115
    with opened as tar:
        for member in tar:
            name = str(PurePosixPath(member.name))
            if member.isreg() and wanted(name) and (content := tar.extractfile(member)) is not None:
                yield name, content.read()


def unpack(archive: Path, root: Path, expected: Sequence[File | Folder]) -> None:
    """Writes only the members that a dataset expects: a name such as `../x` matches none of them."""
    for name, content in members(archive, lambda name: any(part.holds(name) for part in expected)):
        write_atomically(root / name, content)
