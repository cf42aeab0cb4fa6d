"""CIFAR-10: 32x32 colour images of ten classes, in the binary or the Python (pickle) version.

Pickles can run code when they are loaded. These are loaded by an unpickler that allows only NumPy arrays.
"""

from __future__ import annotations

import codecs
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedal.data.dataset import Arrays, Ints, Pixels, normalise
from fedal.data.files import File
from fedal.data.source import Download, Layout, Paper, Source
from fedal.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

BATCHES = {  # the last one is the test set; checksums of the binary and the Python version
    "data_batch_1": ("5dd7e06a14cb22eb9f671a540d1b7c25", "c99cafc152244af753f735de768cd75f"),
    "data_batch_2": ("5ea93a67294ea407fff1d09f752e9692", "d4bba439e000b95fd0a9bffe97cbabec"),
    "data_batch_3": ("942cd6a4bcdd0dd3c604fbe906cb4421", "54ebc095f3ab1f0389bbae665268c751"),
    "data_batch_4": ("ae636b3ba5c66a11e91e8cb52e771fcb", "634d18415352ddfa80567beed471001a"),
    "data_batch_5": ("53f37980c15c3d472c316c40844f3f0d", "482c414d41f54cd18b22e5b47cb7c3cb"),
    "test_batch": ("803d5f7f4d78ea53de84dbe85f74fb6d", "40351d587109b95175f43aff81a1287e"),
}
BINARY = tuple(
    File(f"cifar-10-batches-bin/{batch}.bin", f"md5:{md5}", 30_730_000) for batch, (md5, _) in BATCHES.items()
)
PICKLED = tuple(File(f"cifar-10-batches-py/{batch}", f"md5:{md5}") for batch, (_, md5) in BATCHES.items())
ARCHIVE = File("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")


class ArrayUnpickler(pickle.Unpickler):
    """Loads pickles of plain values and NumPy arrays; any other name in them is rejected, never imported."""

    _RECONSTRUCT = np.empty(0).__reduce__()[0]
    _ALLOWED = {  # noqa: RUF012 (a constant)
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it imports {module}.{name}, which is not allowed") from None


def _parse_binary(content: bytes) -> tuple[Pixels, Ints]:
    """Rows of one label byte and 3,072 pixel bytes (red, green, blue planes)."""
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _parse_pickle(content: bytes) -> tuple[Pixels, Ints]:
    """A dictionary whose `data` is (n, 3072) uint8 and `labels` a list, written by Python 2."""
    batch = ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    data, labels = batch["data"], np.asarray(batch["labels"])
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or labels.dtype.kind not in "iu":
        raise ValueError("data is not uint8 or labels are not integers")
    if labels.shape != data.shape[:1]:
        raise ValueError(f"{len(data)} images and {labels.size} labels")
    return data.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _read_batch(path: Path, parse: Callable[[bytes], tuple[Pixels, Ints]]) -> tuple[Pixels, Ints]:
    try:
        images, labels = parse(path.read_bytes())
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path}: not a CIFAR-10 batch: {error}. Type: fedal data fetch cifar10") from error
    if labels.size == 0 or labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{path}: labels outside 0..9 or none at all. Type: fedal data fetch cifar10")
    return images, labels


def _layout(files: tuple[File, ...], parse: Callable[[bytes], tuple[Pixels, Ints]]) -> Layout:
    def read(root: Path) -> Arrays:
        *train, (test_images, test_y) = (_read_batch(root / file.path, parse) for file in files)
        images, train_y = (np.concatenate(parts) for parts in zip(*train, strict=True))
        return Arrays(normalise(images, MEAN, STD), train_y, normalise(test_images, MEAN, STD), test_y)

    return Layout(files, read)


CIFAR10 = Source(
    name="cifar10",
    summary="photographs of ten classes of objects, 32x32 colour",
    n_classes=10,
    sample_shape=(3, 32, 32),
    train_samples=50_000,
    test_samples=10_000,
    layouts=(_layout(BINARY, _parse_binary), _layout(PICKLED, _parse_pickle)),
    class_names=CLASSES,
    models=("resnet18", "resnet34"),
    paper=Paper(clients=15),
    downloads=(Download(f"https://www.cs.toronto.edu/~kriz/{ARCHIVE.path}", ARCHIVE, is_archive=True),),
)
