"""Tiny files in each publisher's format, with noise as pixels."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(autouse=True)
def no_data_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDAL_DATA", str(tmp_path / "default"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def tiny_idx(folder: Path) -> Callable[..., dict[str, np.ndarray]]:
    """20 training and 10 test images in the files of MNIST or Fashion-MNIST."""

    def make(name: str, gzipped: bool = True) -> dict[str, np.ndarray]:
        arrays = {}
        for file in IDX_NAMES:
            n = 20 if file.startswith("train") else 10
            array = noise(n, 28, 28) if "images" in file else np.arange(n, dtype=np.uint8) % 10
            content = idx_bytes(array)
            path = folder / name / (file + ".gz" * gzipped)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(content) if gzipped else content)
            arrays[file] = array
        return arrays

    return make


@pytest.fixture
def tiny_svhn(folder: Path) -> np.ndarray:
    """Twelve images per split, labels 1..10 and again 1, 2; returns the pixels (n, H, W, C)."""
    from scipy.io import savemat

    pixels = noise(12, 32, 32, 3)
    labels = (np.arange(12, dtype=np.uint8) % 10 + 1)[:, None]
    (folder / "svhn").mkdir(parents=True)
    for split in ("train", "test"):
        savemat(folder / "svhn" / f"{split}_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": labels})
    return pixels


@pytest.fixture
def tiny_cifar_binary(folder: Path) -> np.ndarray:
    """Four images per batch, labels 0..3; returns the pixels of each batch (4, 3, 32, 32)."""
    pixels = noise(4, 3, 32, 32)
    rows = np.hstack([np.arange(4, dtype=np.uint8)[:, None], pixels.reshape(4, -1)])
    batches = folder / "cifar10" / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for batch in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (batches / f"{batch}.bin").write_bytes(rows.tobytes())
    return pixels


@pytest.fixture
def tiny_cifar_pickled(folder: Path) -> np.ndarray:
    """The same images in the Python version."""
    pixels = noise(4, 3, 32, 32)
    batches = folder / "cifar10" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for batch in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        content = {"data": pixels.reshape(4, -1), "labels": [0, 1, 2, 3], "batch_label": batch, "filenames": ["a"] * 4}
        (batches / batch).write_bytes(pickle.dumps(content, protocol=2))
    return pixels


@pytest.fixture
def tiny_cinic(folder: Path) -> np.ndarray:
    """Two PNG files per class and split; returns their pixels (2, 32, 32, 3)."""
    from PIL import Image

    pixels = noise(2, 32, 32, 3)
    for split in ("train", "test"):
        for label in CLASSES:
            of_class = folder / "cinic10" / split / label
            of_class.mkdir(parents=True)
            for i in (1, 0):  # written in the wrong order on purpose
                Image.fromarray(pixels[i]).save(of_class / f"img-{i}.png")
    return pixels


@pytest.fixture
def tiny_celeba(folder: Path) -> Path:
    """Celebrity 7 has 5 images, 3 has 20, 9 has 4 (too few); image 2 of each celebrity smiles, every other does not."""
    from PIL import Image

    root = folder / "celeba"
    (root / "img_align_celeba").mkdir(parents=True)
    owners = [7] * 5 + [3] * 20 + [9] * 4
    names = [f"{i:06d}.jpg" for i in range(1, len(owners) + 1)]
    smiles = [1 if owners[:i].count(owner) == 1 else -1 for i, owner in enumerate(owners)]
    (root / "identity_CelebA.txt").write_text("".join(f"{n} {o}\n" for n, o in zip(names, owners)))
    rows = "".join(f"{n} -1  {s} 1\n" for n, s in zip(names, smiles))
    (root / "list_attr_celeba.txt").write_text(f"{len(names)}\nBald Smiling Young\n{rows}")
    for i, name in enumerate(names):
        picture = np.full((218, 178, 3), 8 * i, np.uint8)
        picture[:20] = picture[-20:] = 255  # outside the centre square
        Image.fromarray(picture).save(root / "img_align_celeba" / name, quality=95)
    return root
