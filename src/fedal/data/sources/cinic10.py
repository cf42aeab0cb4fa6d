"""CINIC-10: CIFAR-10's classes with images from ImageNet added, as folders of PNG files.

`train` and `test` are used, 90,000 images each; the `valid` part is not. The publisher gives a checksum for the
archive but none for single images, so the folders are verified by the official counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedal.data.dataset import Arrays, Floats, Ints, normalise
from fedal.data.files import File, Folder
from fedal.data.image import read_image
from fedal.data.source import Download, Layout, Paper, Source
from fedal.data.sources.cifar10 import CLASSES

SPLITS = ("train", "test")
IMAGES_PER_CLASS = 9_000
MEAN, STD = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
ARCHIVE = File("CINIC-10.tar.gz", "md5:6ee4d0c996905fe93221de577967a372")


def _read_split(folder: Path) -> tuple[Floats, Ints]:
    """Reads classes in alphabetical order and files in the order of their names: the same on every machine."""
    paths = [sorted((folder / label).glob("*.png")) for label in CLASSES]
    labels = np.repeat(np.arange(len(CLASSES)), [len(of_class) for of_class in paths])
    images = np.empty((len(labels), 3, 32, 32), np.uint8)
    for i, path in enumerate(path for of_class in paths for path in of_class):
        images[i] = read_image(path, size=(32, 32)).transpose(2, 0, 1)
    return normalise(images, MEAN, STD), labels.astype(np.int64)


def read(root: Path) -> Arrays:
    return Arrays(*_read_split(root / "train"), *_read_split(root / "test"))


CINIC10 = Source(
    name="cinic10",
    summary="CIFAR-10's classes with ImageNet images added, 32x32 colour",
    n_classes=10,
    sample_shape=(3, 32, 32),
    train_samples=90_000,
    test_samples=90_000,
    layouts=(
        Layout(
            tuple(Folder(f"{split}/{label}", ".png", IMAGES_PER_CLASS) for split in SPLITS for label in CLASSES), read
        ),
    ),
    class_names=CLASSES,
    models=("resnet18", "resnet34"),
    paper=Paper(clients=10, iterations=10_000),
    downloads=(
        Download(f"https://datashare.ed.ac.uk/bitstream/handle/10283/3192/{ARCHIVE.path}", ARCHIVE, is_archive=True),
    ),
)
