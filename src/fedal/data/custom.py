"""Custom data: turns `.npz` files, arrays, tensors or torch datasets into a checked `Dataset`.

Pixels of type uint8 are divided by 255; all other numbers are used unchanged. Without test samples, every fifth sample
of each class, in the order given, is held out. This is deterministic and stratified.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedal.data.dataset import Dataset, Floats, Ints, refuse_channels_last
from fedal.data.npz import UNREADABLE, refuse_bad_npz
from fedal.data.schema import Arrays, Schema
from fedal.errors import DataError

OPTIONAL = ("test_x", "test_y", "users", "n_classes", "layout")  # arrays of an .npz file
PICKLED = "it holds Python objects, which are not read because reading them can run code"

ArrayLike: TypeAlias = Any  # anything NumPy accepts, or a torch tensor


class Pairs(Protocol):
    """The interface of a torch `Dataset` with a length: pairs of sample and label by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def load_npz(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    n_classes: int | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """A dataset from an `.npz` file with `x` and `y`; optional: `test_x`, `test_y`, `users`, `n_classes`, `layout`.

    With a schema of arrays, `y` may hold names of its classes.
    """
    path = Path(path)
    arrays: dict[str, Any] = _read_npz(path, required=("x", "y"), optional=OPTIONAL)
    if "layout" in arrays:
        arrays["layout"] = str(arrays["layout"])
    if n_classes is None and "n_classes" in arrays:
        n_classes = int(_integers(arrays["n_classes"].reshape(-1)[:1], f"{path}, n_classes")[0])
    arrays["n_classes"] = n_classes
    if schema is not None:
        arrays["layout"] = _fitted(arrays, schema, str(path)) or arrays.get("layout")
        arrays["n_classes"], arrays["class_names"] = schema.n_classes, schema.classes
    data = from_tensors(**arrays, name=name or path.stem, provenance=f"custom file {path.name}", where=str(path))
    return data if schema is None else replace(data, schema=schema)


def load_public_npz(path: str | os.PathLike[str]) -> Floats:
    """Unlabelled samples from the array `x` of an `.npz` file; labels in the file are ignored."""
    path = Path(path)
    arrays = _read_npz(path, required=("x",), optional=("layout",))
    refuse_channels_last(arrays["x"].shape, str(arrays["layout"]) if "layout" in arrays else None, f"{path}, x")
    return _features(arrays["x"], f"{path}, x")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays that fedal reads of an `.npz` file."""
    return _read_npz(path, required=("x",), optional=("y", *OPTIONAL))


def from_tensors(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test_x: ArrayLike | None = None,
    test_y: ArrayLike | None = None,
    users: ArrayLike | None = None,
    n_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    name: str = "own",
    provenance: str = "custom tensors",
    where: str | None = None,
    layout: str | None = None,
) -> Dataset:
    """A dataset from arrays or tensors, checked; `n_classes` is needed only if a class has no samples.

    Images are (n, C, H, W). An array that looks like (n, H, W, C) is refused, unless `layout` is "chw".
    """
    where = where or name
    if (test_x is None) != (test_y is None):
        found, lacking = ("test_x", "test_y") if test_y is None else ("test_y", "test_x")
        raise DataError(f"{where}: {found} is given without {lacking}. Provide both or neither.")
    train_x, train_y = _features(x, f"{where}, x"), _labels(y, f"{where}, y")
    refuse_channels_last(train_x.shape, layout, f"{where}, x")
    owner = None if users is None else _integers(users, f"{where}, users")
    _same_length(where, x=train_x, y=train_y, **({} if owner is None else {"users": owner}))
    if test_x is not None:
        held_x, held_y = _features(test_x, f"{where}, test_x"), _labels(test_y, f"{where}, test_y")
        _same_length(where, test_x=held_x, test_y=held_y)
        n_classes = _count_classes(where, np.concatenate([train_y, held_y]), n_classes)
    else:
        n_classes = _count_classes(where, train_y, n_classes)
        held = held_out_fifth(train_y)
        if not held.any():
            raise DataError(
                f"{where}: no class has 5 samples, so none can be held out for testing. Provide test_x and test_y."
            )
        held_x, held_y = train_x[held], train_y[held]
        train_x, train_y = train_x[~held], train_y[~held]
        owner = None if owner is None else owner[~held]
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=held_x,
        test_y=held_y,
        n_classes=n_classes,
        users=owner,
        class_names=None if class_names is None else tuple(class_names),
        provenance=provenance,
        layout=layout,
    )


def from_dataset(
    train: Pairs,
    test: Pairs | None = None,
    *,
    n_classes: int | None = None,
    name: str = "own",
    layout: str | None = None,
) -> Dataset:
    """A dataset from torch `Dataset` objects (or any sequence of sample-label pairs), read once into memory."""
    x, y = _stack(train, f"{name}, train")
    test_x, test_y = (None, None) if test is None else _stack(test, f"{name}, test")
    return from_tensors(
        x,
        y,
        test_x=test_x,
        test_y=test_y,
        n_classes=n_classes,
        name=name,
        provenance=f"custom {type(train).__name__}",
        layout=layout,
    )


def by_schema(
    schema: Schema, name: str, train_x: Floats, test_x: Floats, y: Ints, held: NDArray[np.bool_], **more: Any
) -> Dataset:
    """The dataset of samples that a schema encoded; those that are `held` are for testing."""
    return Dataset(
        name, train_x, y[~held], test_x, y[held], schema.n_classes, class_names=schema.classes, schema=schema, **more
    )


def held_out_fifth(y: Ints) -> NDArray[np.bool_]:
    """True for every fifth sample of each class, in the order given; a class of fewer than 5 keeps all its samples."""
    held = np.zeros(len(y), np.bool_)
    for label in np.unique(y):
        held[np.flatnonzero(y == label)[4::5]] = True
    return held


def _read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """The arrays with these names. Object arrays, which would need pickle, are rejected."""
    usage = f"Save it with: numpy.savez(path, {', '.join(f'{key}=...' for key in required)})"
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected an .npz file. {usage}")
    if not path.exists():
        raise DataError(f"{path}: the file does not exist.")
    if path.is_file() and not zipfile.is_zipfile(path):  # numpy would take any text for a pickle
        raise DataError(f"{path}: not a complete .npz file of plain arrays (not a zip archive). {usage}")
    try:
        refuse_bad_npz(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = archive.files
            arrays = {key: archive[key] for key in (*required, *optional) if key in found}
    except UNREADABLE as error:
        reason = PICKLED if "pickle" in str(error) else error
        raise DataError(f"{path}: not a complete .npz file of plain arrays ({reason}). {usage}") from error
    for key in required:
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (found: {', '.join(found) or 'none'}). {usage}")
    return arrays


def _fitted(arrays: dict[str, Any], schema: Schema, where: str) -> str | None:
    """Replaces names of classes by their numbers; returns the order of the axes. Raises DataError if x does not fit."""
    shape = arrays["x"].shape[1:]
    if not isinstance(schema.inputs, Arrays) or shape != schema.inputs.shape:
        raise DataError(
            f"{where}: arrays of shape {shape}; the schema describes {schema.inputs.kind} of shape "
            f"{schema.sample_shape}."
        )
    numbers = {name: number for number, name in enumerate(schema.classes)}
    for key in ("y", "test_y"):
        if key in arrays and arrays[key].dtype.kind in "US":
            names = arrays[key].astype(str)
            unknown = [i for i, name in enumerate(names.reshape(-1)) if name not in numbers]
            if unknown:
                raise DataError(
                    f"{where}, {key}, row {unknown[0] + 1}: {str(names.reshape(-1)[unknown[0]])!r} is not one of the "
                    f"classes {', '.join(schema.classes[:20])}."
                )
            arrays[key] = np.array([numbers[name] for name in names.reshape(-1)], np.int64).reshape(names.shape)
    return schema.inputs.order


def _as_numpy(values: ArrayLike) -> NDArray[Any]:
    """The values as an array; a torch tensor is recognised by its `detach`, without importing torch."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def _features(values: ArrayLike, where: str) -> Floats:
    x = _as_numpy(values)
    if x.dtype.kind not in "fiu":
        raise DataError(f"{where}: the values are {x.dtype}; expected real numbers (float32 is best).")
    if x.ndim < 2 or len(x) == 0 or 0 in x.shape:
        raise DataError(f"{where}: shape {x.shape}; expected (n, ...) with at least one sample, such as (n, C, H, W).")
    if x.dtype == np.uint8:
        return x.astype(np.float32) * np.float32(1 / 255)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(x).all():
        bad = int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])
        raise DataError(
            f"{where}: sample {bad} has non-finite values, or values too large for float32. Remove or replace it."
        )
    return x


def _integers(values: ArrayLike, where: str) -> Ints:
    numbers = _as_numpy(values)
    if numbers.dtype.kind in "USO":
        raise DataError(
            f"{where}: the values are texts or objects ({numbers.dtype}); expected integers. For names of classes, "
            "draft a schema: fedal schema PUBLIC --classes no,yes"
        )
    if numbers.dtype.kind not in "iu":
        raise DataError(f"{where}: the values are {numbers.dtype}; expected integers. Try: .astype('int64')")
    if numbers.ndim != 1:
        raise DataError(f"{where}: shape {numbers.shape}; expected (n,). Try: .reshape(-1)")
    return numbers.astype(np.int64)


def _labels(values: ArrayLike, where: str) -> Ints:
    y = _integers(values, where)
    if len(y) and y.min() < 0:
        raise DataError(f"{where}: the smallest label is {y.min()}; expected labels 0 to K-1.")
    return y


def _same_length(where: str, **arrays: NDArray[Any]) -> None:
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(array):,}" for key, array in arrays.items())
        raise DataError(f"{where}: {lengths} entries; expected the same number.")


def _count_classes(where: str, y: Ints, n_classes: int | None) -> int:
    """K, as given or from the labels; a gap in the labels is an error unless K is given."""
    if n_classes is not None:
        if n_classes < 2 or y.max() >= n_classes:
            raise DataError(f"{where}: the largest label is {y.max()}, but n_classes is {n_classes}.")
        return n_classes
    seen = np.unique(y)
    if len(seen) < 2:
        raise DataError(f"{where}: all labels are {seen[0]}; expected at least two classes.")
    if seen[-1] != len(seen) - 1:
        gap = next(i for i, label in enumerate(seen) if i != label)
        raise DataError(
            f"{where}: labels go up to {seen[-1]}, but none is {gap}; expected 0 to K-1. "
            "Renumber them, or provide n_classes if that class just has no samples."
        )
    return len(seen)


def _stack(samples: Pairs, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if len(samples) == 0:
        raise DataError(f"{where}: there are no samples.")
    try:
        pairs = [samples[i] for i in range(len(samples))]
        x, y = zip(*((_as_numpy(sample), _as_numpy(label)) for sample, label in pairs), strict=True)
        return np.stack(x), np.stack(y)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: cannot be read as pairs of sample and label with one shape ({error}). "
            "Convert samples to tensors, for example with a transform."
        ) from error
