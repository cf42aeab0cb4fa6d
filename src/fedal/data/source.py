"""The description of a dataset: facts, expected files, how to read them, and where to download them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedal.data.dataset import Arrays
from fedal.data.files import File, Folder
from fedal.data.folder import data_folder


@dataclass(frozen=True)
class Layout:
    """One possible layout of the publisher's files in a folder, and the function that parses them once verified."""

    expected: tuple[File | Folder, ...]
    read: Callable[..., Arrays]

    def count_present(self, root: Path) -> int:
        return sum(part.is_present(root) for part in self.expected)


@dataclass(frozen=True)
class Download:
    """A file at the publisher; an archive is unpacked and removed once it has been verified."""

    url: str
    file: File
    is_archive: bool = False


BY_ALPHA = {5.0: 3000, 2.0: 5000, 1.0: 7000}
"""alpha -> iterations in the FedAL paper, unless it states otherwise."""


@dataclass(frozen=True)
class Paper:
    """The FedAL paper's settings for a dataset; the defaults, without `clients`, are for datasets it does not use."""

    clients: int | None = None
    iterations: int | Mapping[float, int] = field(default_factory=lambda: BY_ALPHA)  # one number, or by alpha
    lr: float = 1e-3
    public_size: int = 1000

    def length(self, alpha: float) -> int:
        """Iterations at this alpha; for an alpha not in the paper, those of its most skewed data."""
        return self.iterations if isinstance(self.iterations, int) else self.iterations.get(alpha, BY_ALPHA[1.0])


@dataclass(frozen=True)
class Source:
    """What is known about a dataset without opening it."""

    name: str
    summary: str
    n_classes: int
    sample_shape: tuple[int, ...]
    train_samples: int | None  # None: depends on how many users are read
    test_samples: int | None
    layouts: tuple[Layout, ...]
    class_names: tuple[str, ...] | None = None
    models: tuple[str, ...] = ()  # the candidates that clients draw from; empty: chosen by sample shape
    paper: Paper = Paper()
    partition: str = "dirichlet"  # the default
    public_size: int | None = None  # the default; None: as for custom data
    users_needed: Callable[[int, int], int] | None = None  # clients, public samples -> users to read; None: all
    downloads: tuple[Download, ...] = ()
    has_users: bool = False
    by_hand: str = ""  # instructions, if there is no direct download
    unverified_hint: str = ""  # which known files differ from the official ones
    home: Callable[[], Path] | None = None  # for a dataset inside a Python package
    repair: str = ""  # the command that restores the files, if not `fedal data fetch`

    def root(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """The folder of this dataset."""
        return self.home() if self.home else data_folder(folder) / self.name

    def layout_at(self, root: Path) -> Layout:
        """The layout with the most files present; the first one if none are."""
        return max(self.layouts, key=lambda layout: layout.count_present(root))

    def fetch_command(self, folder: str | os.PathLike[str] | None = None) -> str:
        """The command that gets the files into this folder."""
        elsewhere = f" --folder {shlex.quote(os.fspath(folder))}" if folder is not None else ""
        return self.repair or f"fedal data fetch {self.name}{elsewhere}"
