"""digits: 1,797 handwritten digits of 8x8 pixels, shipped with scikit-learn. The default, which needs no download.

Publisher: UCI, Optical Recognition of Handwritten Digits (its test part). There is no official split; here every
fifth image, starting with the first, is a test image.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedal.data.dataset import Arrays
from fedal.data.files import File
from fedal.data.source import Layout, Source
from fedal.errors import DataError

CSV = File(
    "datasets/data/digits.csv.gz",
    "sha256:09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
    57_523,
)
MEAN, STD = 0.3052, 0.3763  # of the 1,437 training images after division by 16


def read(root: Path) -> Arrays:
    """Reads the table; pixels 0..16 become (pixel / 16 - MEAN) / STD."""
    path = root / CSV.path
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
        pixels, labels = table[:, :64], table[:, 64].astype(np.int64)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path}: not a table of 65 numbers per line ({error}). Type: {DIGITS.repair}") from error
    x = (pixels.reshape(-1, 1, 8, 8) / np.float32(16) - np.float32(MEAN)) / np.float32(STD)
    is_test = np.arange(len(labels)) % 5 == 0
    return Arrays(x[~is_test], labels[~is_test], x[is_test], labels[is_test])


def _package_folder() -> Path:
    """The folder of scikit-learn, found without importing it, which would take over a second."""
    from importlib.util import find_spec

    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "digits: scikit-learn, which contains this dataset, is not installed. Type: pip install scikit-learn"
        )
    return Path(spec.submodule_search_locations[0])


DIGITS = Source(
    name="digits",
    summary="handwritten digits, 8x8 grey, inside scikit-learn",
    n_classes=10,
    sample_shape=(1, 8, 8),
    train_samples=1_437,
    test_samples=360,
    layouts=(Layout((CSV,), read),),
    class_names=tuple("0123456789"),
    models=("mlp-small", "cnn-small", "cnn-small-bn"),
    public_size=300,
    home=_package_folder,
    repair="pip install --force-reinstall scikit-learn",
)
