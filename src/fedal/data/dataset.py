"""The dataset that every data source produces: training and test arrays with labels, and their provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedal.data.schema import Schema
from fedal.errors import DataError

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]

CHANNELS = (1, 3, 4)  # of an image: grey, colour, colour with transparency


class Arrays(NamedTuple):
    """The arrays that a dataset's reader returns; `Dataset` documents each of them."""

    train_x: Floats
    train_y: Ints
    test_x: Floats
    test_y: Ints
    users: Ints | None = None


class Owned(NamedTuple):
    """An owner's part of a dataset: indices of its samples, and the columns of the schema that it does not have."""

    train: Ints
    test: Ints
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples for training and testing, ready for a model.

    `train_x`, `test_x`: float32, normalised, (n, C, H, W) for images or (n, ...) for custom data.
    `train_y`, `test_y`: int64 in 0..n_classes-1.  `users`: int64, the user that each training sample belongs to.
    `layout`: "chw" confirms (n, C, H, W) where the shape looks like (n, H, W, C).
    `schema`: what the samples were encoded with, if it was used; it names the classes and the positive one.
    `lacking`: columns of the schema that the owner does not have; its public inputs are imputed there too.
    `notes`: what was decided while reading, one line each, for the user.
    `owners`: client -> its part, if each client brought its own data; then nothing is partitioned.
    """

    name: str
    train_x: Floats
    train_y: Ints
    test_x: Floats
    test_y: Ints
    n_classes: int
    users: Ints | None = None
    class_names: tuple[str, ...] | None = None
    provenance: str = ""
    verified: bool = False
    layout: str | None = None
    schema: Schema | None = None
    lacking: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    owners: Mapping[str, Owned] | None = None

    def __post_init__(self) -> None:
        self._check_split("train", self.train_x, self.train_y)
        self._check_split("test", self.test_x, self.test_y)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"{self.name}: training samples have shape {self.train_x.shape[1:]}, test samples "
                f"{self.test_x.shape[1:]}. The shapes must be the same."
            )
        if self.users is not None and (self.users.shape != self.train_y.shape or self.users.dtype != np.int64):
            raise DataError(
                f"{self.name}: users has shape {self.users.shape} and type {self.users.dtype}; expected one int64 "
                f"per training sample, shape {self.train_y.shape}."
            )
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise DataError(f"{self.name}: {len(self.class_names)} class names for {self.n_classes} classes.")

    def _check_split(self, split: str, x: Floats, y: Ints) -> None:
        if x.dtype != np.float32 or y.dtype != np.int64:
            raise DataError(f"{self.name}, {split}: x is {x.dtype}, y is {y.dtype}; expected float32 and int64.")
        if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
            raise DataError(
                f"{self.name}, {split}: x has shape {x.shape}, y has shape {y.shape}; "
                "expected (n, ...) and (n,) with the same n."
            )
        refuse_channels_last(x.shape, self.layout, f"{self.name}, {split}")
        if len(y) == 0:
            raise DataError(f"{self.name}, {split}: there are no samples.")
        if y.min() < 0 or y.max() >= self.n_classes:
            raise DataError(
                f"{self.name}, {split}: labels run from {y.min()} to {y.max()}; expected 0 to {self.n_classes - 1}."
            )

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample, for example (1, 28, 28)."""
        return tuple(self.train_x.shape[1:])

    @property
    def positive(self) -> int | None:
        """Of two classes, the one that precision, recall and curves are about, if a schema names it."""
        return None if self.schema is None else self.schema.positive_index

    def lacking_of(self, client: str) -> tuple[str, ...]:
        """The columns of the schema that a client does not have."""
        return self.lacking if self.owners is None else self.owners[client].lacking

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.train_y)} train, {len(self.test_y)} test, "
            f"{self.n_classes} classes, sample {self.sample_shape}, {self.provenance!r})"
        )


def refuse_channels_last(shape: tuple[int, ...], layout: str | None, where: str) -> None:
    """Raises DataError if samples look like images with the channels last, (n, H, W, C). Converting would be a guess.

    They do if the last axis has length 1, 3 or 4, the second has none of these lengths, and the second and third are
    longer than the last.
    """
    if layout is not None and layout != "chw":
        raise DataError(f'{where}: layout is {layout!r}; expected "chw", for samples of shape (C, H, W).')
    if layout is not None or len(shape) != 4:
        return
    _, second, third, last = shape
    if last in CHANNELS and second not in CHANNELS and min(second, third) > last:
        raise DataError(
            f"{where}: shape {shape} looks like (n, H, W, C), images with the channels last; expected (n, C, H, W). "
            f"Try: x.transpose(0, 3, 1, 2). If it has {second} channels of {third}x{last} pixels, pass "
            'layout="chw", or save it in the .npz file.'
        )


def normalise(pixels: Pixels, mean: tuple[float, ...], std: tuple[float, ...]) -> Floats:
    """(pixel / 255 - mean) / std per channel, in float32.  (n, C, H, W) -> (n, C, H, W)

    In memory, channels come last, as training needs them: the samples of a run are views of this array, never copies.
    """
    x = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).astype(np.float32).transpose(0, 3, 1, 2)
    per_channel = (1, len(mean), 1, 1)
    x *= (1.0 / (255.0 * np.asarray(std))).astype(np.float32).reshape(per_channel)
    x -= (np.asarray(mean) / np.asarray(std)).astype(np.float32).reshape(per_channel)
    return x
