"""MNIST and Fashion-MNIST: the publishers' idx files, gzipped as published or already unpacked.

An idx file is a big-endian header (type, number of dimensions, one length per dimension) followed by the bytes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedal.data.dataset import Arrays, Pixels, normalise
from fedal.data.files import File
from fedal.data.source import Download, Layout, Paper, Source
from fedal.errors import DataError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNPACKED_BYTES = (47_040_016, 60_008, 7_840_016, 10_008)

FASHION_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")


def parse_idx(content: bytes, n_dimensions: int) -> Pixels:
    """The array in an idx file of unsigned bytes; raises ValueError if the content is anything else."""
    header_bytes = 4 + 4 * n_dimensions
    if len(content) < header_bytes:
        raise ValueError(f"{len(content)} bytes, too short for a header")
    magic, *shape = struct.unpack(f">{1 + n_dimensions}I", content[:header_bytes])
    if magic != 0x0800 + n_dimensions:
        raise ValueError(f"starts with {magic:#010x}, expected {0x0800 + n_dimensions:#010x}")
    expected = header_bytes + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise ValueError(f"{len(content):,} bytes, but its header says {expected:,}")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _read_array(path: Path, n_dimensions: int) -> Pixels:
    try:
        content = path.read_bytes()
        return parse_idx(gzip.decompress(content) if path.suffix == ".gz" else content, n_dimensions)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path}: not a complete idx file ({error}). Replace it with the publisher's file.") from error


def _read(root: Path, *, suffix: str, mean: float, std: float) -> Arrays:
    train_x, train_y, test_x, test_y = (
        _read_array(root / (file + suffix), n_dimensions=3 if "images" in file else 1) for file in NAMES
    )
    train, test = (normalise(images[:, None], (mean,), (std,)) for images in (train_x, test_x))
    return Arrays(train, train_y.astype(np.int64), test, test_y.astype(np.int64))


def _source(url: str, mean: float, std: float, files: Sequence[tuple[str, int, str]], **facts: Any) -> Source:
    """A source of idx files. `files` has, for each of NAMES, checksum and size of the packed file and checksum of the
    unpacked one."""
    rows = list(zip(NAMES, files, UNPACKED_BYTES, strict=True))
    packed = tuple(File(f"{name}.gz", f"md5:{md5}", size) for name, (md5, size, _), _ in rows)
    plain = tuple(File(name, f"md5:{md5}", size) for name, (_, _, md5), size in rows)
    read = partial(_read, mean=mean, std=std)
    return Source(
        n_classes=10,
        sample_shape=(1, 28, 28),
        train_samples=60_000,
        test_samples=10_000,
        layouts=(Layout(packed, partial(read, suffix=".gz")), Layout(plain, partial(read, suffix=""))),
        models=("lenet5",),
        downloads=tuple(Download(url + file.path, file) for file in packed),
        **facts,
    )


MNIST = _source(
    name="mnist",
    summary="handwritten digits, 28x28 grey",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    mean=0.1307,
    std=0.3081,
    class_names=tuple("0123456789"),
    files=(
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422, "6bbc9ace898e44ae57da46a324031adb"),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28_881, "a25bea736e30d166cdddb491f175f624"),
        ("9fb629c4189551a2d022fa330f9573f3", 1_648_877, "2646ac647ad5339dbf082846283269ea"),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4_542, "27ae3e4e09519cfbb04c329615203637"),
    ),
    paper=Paper(clients=10),
)

FASHION_MNIST = _source(
    name="fashion-mnist",
    summary="photographs of clothes, 28x28 grey",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    mean=0.2860,
    std=0.3530,
    class_names=FASHION_CLASSES,
    files=(
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("25c81989df183df01b3e8a0aad5dffbe", 29_515, "9018921c3c673c538a1fc5bad174d6f9"),
        ("bef4ecab320f06d8554ea6380940ec79", 4_422_102, "8181f5470baa50b63fa0f6fddb340f0a"),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5_148, "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
)
