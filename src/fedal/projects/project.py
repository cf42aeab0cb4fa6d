"""A project: the files of a new folder, which exists with all of them or not at all."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedal.errors import ConfigError

SITES = ("north", "south", "east")

Rows = list[list[str]]


@dataclass(frozen=True)
class Project:
    """What a project is about, and the function that writes its files and returns where the data come from."""

    summary: str
    write: Callable[[Path], str]


def create(project: Project, folder: Path) -> str:
    """Writes the project into a new folder; returns where its data come from. An error leaves nothing behind."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already, and is not an empty folder. Choose another --out.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        staging.chmod(0o777 & ~_umask())  # first, because a file is as private as its folder when it is written
        origin = project.write(staging)
        if folder.exists():
            folder.rmdir()
        os.replace(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return origin


def write_texts(folder: Path, **texts: str) -> None:
    """Writes federation.toml, my_models.py and README.md, by the names `federation`, `models` and `readme`."""
    names = {"federation": "federation.toml", "models": "my_models.py", "readme": "README.md"}
    for name, text in texts.items():
        (folder / names[name]).write_text(text.lstrip("\n"), encoding="utf-8")


def write_table(path: Path, columns: Sequence[str], rows: Rows) -> None:
    """Writes a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
