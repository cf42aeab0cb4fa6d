"""SVHN: house numbers, cropped to 32x32 colour, as MATLAB files. The `extra` part is not used, as in the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedal.data.dataset import Arrays, Floats, Ints, normalise
from fedal.data.files import File
from fedal.data.source import Download, Layout, Paper, Source
from fedal.errors import DataError

TRAIN = File("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794)
TEST = File("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", 64_275_384)
URL = "http://ufldl.stanford.edu/housenumbers/"
MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def _read_split(path: Path) -> tuple[Floats, Ints]:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("X", "y"))
        images, labels = content["X"], content["y"].ravel()
    except Exception as error:  # a damaged .mat file can fail in any way
        raise DataError(f"{path}: not a readable SVHN file ({error!r}). Type: fedal data fetch svhn") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: X is {images.dtype} of shape {images.shape}; expected uint8 of shape (32, 32, 3, n).")
    if labels.dtype.kind not in "iu" or labels.size == 0 or labels.min() < 1 or labels.max() > 10:
        raise DataError(f"{path}: y is {labels.dtype} with values outside 1..10; expected integers 1..10.")
    y = labels.astype(np.int64) % 10  # the digit 0 is stored as 10
    return normalise(images.transpose(3, 2, 0, 1), MEAN, STD), y


def read(root: Path) -> Arrays:
    return Arrays(*_read_split(root / TRAIN.path), *_read_split(root / TEST.path))


SVHN = Source(
    name="svhn",
    summary="house numbers, 32x32 colour (non-commercial research only)",
    n_classes=10,
    sample_shape=(3, 32, 32),
    train_samples=73_257,
    test_samples=26_032,
    layouts=(Layout((TRAIN, TEST), read),),
    class_names=tuple("0123456789"),
    models=("wrn-10-1", "wrn-10-2", "wrn-16-1"),
    paper=Paper(clients=20),
    downloads=tuple(Download(URL + file.path, file) for file in (TRAIN, TEST)),
    unverified_hint="the restored SVHN-40k files need this",
)
