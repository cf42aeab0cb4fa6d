"""CelebA: faces of celebrities, target Smiling; every celebrity is a user, as in LEAF.

As in LEAF: celebrities with at least 5 images, 84x84 colour, each celebrity's images split 90/10 into training and
test. LEAF squeezes the whole 178x218 image into the square; here the centre 178x178 is scaled to 84x84, which keeps
the proportions of the face. The global test set is the union of all held-out images.

The publisher has no checksums of single images, so the images are verified by number and the lists by checksum.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedal.data.dataset import Arrays, Floats, normalise
from fedal.data.files import File, Folder
from fedal.data.image import read_image
from fedal.data.source import Layout, Paper, Source
from fedal.errors import DataError

ATTRIBUTES = File("list_attr_celeba.txt", "md5:75e246fa4810816ffd6ee81facbd244c")
IDENTITIES = File("identity_CelebA.txt", "md5:32bd1bd63d3c78cd57e08160ec5ed1e2")
IMAGES = Folder("img_align_celeba", ".jpg", 202_599)

TARGET = "Smiling"
MIN_IMAGES = 5
SIDE = 84
ALIGNED_SIZE = (178, 218)
MEAN = STD = (0.5, 0.5, 0.5)


def read(root: Path, max_users: int | None = None) -> Arrays:
    """Decodes the images of at most `max_users` celebrities, in the order of their (arbitrary) numbers."""
    smiling = _read_target(root / ATTRIBUTES.path)
    images_of = _read_identities(root / IDENTITIES.path)
    celebrities = sorted(user for user, images in images_of.items() if len(images) >= MIN_IMAGES)
    if not celebrities:
        raise DataError(
            f"{root / IDENTITIES.path}: no celebrity has {MIN_IMAGES} images or more. Download the file again."
        )
    train: list[tuple[str, int]] = []  # image and user
    test: list[tuple[str, int]] = []
    for user in celebrities[:max_users]:
        images = [(image, user) for image in sorted(images_of[user])]
        n_test = max(1, len(images) // 10)  # the last tenth in the order of file names, at least one
        train += images[:-n_test]
        test += images[-n_test:]
    for image, _ in train + test:
        if image not in smiling:
            raise DataError(f"{root / ATTRIBUTES.path}: no line for {image}, which {IDENTITIES.path} names.")
    train_y, test_y = (np.array([smiling[image] for image, _ in part], np.int64) for part in (train, test))
    train_x, test_x = (_decode(root / IMAGES.path, [image for image, _ in part]) for part in (train, test))
    return Arrays(train_x, train_y, test_x, test_y, users=np.array([user for _, user in train], np.int64))


def _read_target(path: Path) -> dict[str, int]:
    """Image name -> 0 or 1. The file: a count, the names of the attributes, then a name and -1 or 1 per attribute."""
    lines = _lines(path)
    header = lines[1].split() if len(lines) > 1 else []
    if TARGET not in header:
        raise DataError(f"{path}: its second line does not name the attribute {TARGET}. Download the file again.")
    column = 1 + header.index(TARGET)
    values = {"-1": 0, "1": 1}
    target = {}
    for number, line in enumerate(lines[2:], start=3):
        fields = line.split()
        if len(fields) != 1 + len(header) or fields[column] not in values:
            raise DataError(f"{path}, line {number}: expected an image name and {len(header)} values of -1 or 1.")
        target[fields[0]] = values[fields[column]]
    return target


def _read_identities(path: Path) -> dict[int, list[str]]:
    """Celebrity -> image names. The file: an image name and a number per line."""
    images_of: dict[int, list[str]] = {}
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isdecimal():
            raise DataError(f"{path}, line {number}: expected an image name and the number of a celebrity.")
        if Path(fields[0]).name != fields[0]:
            raise DataError(f"{path}, line {number}: {fields[0]} is not the name of an image.")
        images_of.setdefault(int(fields[1]), []).append(fields[0])
    return images_of


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file ({error}). Download the file again.") from error


def _decode(folder: Path, names: list[str]) -> Floats:
    pixels = np.empty((len(names), 3, SIDE, SIDE), np.uint8)
    for i, name in enumerate(names):
        pixels[i] = read_image(folder / name, size=ALIGNED_SIZE, resize_to=SIDE).transpose(2, 0, 1)
    return normalise(pixels, MEAN, STD)


def users_needed(clients: int, public_samples: int) -> int:
    """Two celebrities per client, plus enough for the public set: decoding more takes minutes."""
    return 2 * clients + public_samples // 10


CELEBA = Source(
    name="celeba",
    summary="faces of 9,343 celebrities (the users), smiling or not, 84x84 colour (non-commercial research only)",
    n_classes=2,
    sample_shape=(3, SIDE, SIDE),
    train_samples=None,
    test_samples=None,
    layouts=(Layout((ATTRIBUTES, IDENTITIES, IMAGES), read),),
    class_names=("not smiling", "smiling"),
    models=("celeba-cnn",),
    paper=Paper(clients=20, iterations=10_000, lr=1e-4),
    partition="by-user",
    users_needed=users_needed,
    has_users=True,
    by_hand=(
        "CelebA must be downloaded by hand: see the CelebA page of the Multimedia Laboratory, CUHK "
        f"(mmlab.ie.cuhk.edu.hk/projects/CelebA.html). Put {ATTRIBUTES.path}, {IDENTITIES.path} and the unpacked "
        f"folder {IMAGES.path} (from img_align_celeba.zip) into {{root}}, then type: fedal data check celeba"
    ),
)
