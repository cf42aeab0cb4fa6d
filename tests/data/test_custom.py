"""Custom files and tensors: what is accepted, and how errors explain the rest."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedal.data import from_dataset, from_tensors, load_npz, load_public_npz
from fedal.data.dataset import Dataset
from fedal.errors import DataError

X = np.linspace(0, 1, 30 * 4).reshape(30, 4)
Y = np.repeat([0, 1, 2], 10)


def test_npz_without_test_samples_holds_out_a_stratified_fifth(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=X, y=Y, users=np.arange(30) // 3)
    data = load_npz(path)
    assert data.name == "mine" and data.n_classes == 3 and data.train_x.dtype == np.float32
    assert np.bincount(data.train_y).tolist() == [8, 8, 8] and np.bincount(data.test_y).tolist() == [2, 2, 2]
    assert data.users is not None and len(data.users) == 24
    assert (load_npz(path).test_x == data.test_x).all()
    together = np.sort(np.concatenate([data.train_x[:, 0], data.test_x[:, 0]]))
    assert (together == X[:, 0].astype(np.float32)).all()


def test_npz_with_test_samples_uses_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, test_x=X[:2], test_y=Y[:2])
    data = load_npz(tmp_path / "a.npz")
    assert len(data.train_y) == 30 and len(data.test_y) == 2


def test_public_npz_needs_x_only_and_ignores_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", x=X, y=np.array(["never", "read", "at all"]))
    assert load_public_npz(tmp_path / "public.npz").shape == (30, 4)
    np.savez(tmp_path / "none.npz", data=X)
    with pytest.raises(DataError, match=r"no array 'x' \(found: data\)"):
        load_public_npz(tmp_path / "none.npz")


def test_uint8_pixels_are_scaled_to_one() -> None:
    data = from_tensors(np.full((10, 1, 2, 2), 255, np.uint8), np.arange(10) % 2)
    assert data.train_x.max() == pytest.approx(1.0)


@pytest.mark.parametrize("shape", [(8, 8, 1), (5, 6, 3), (32, 32, 4), (2, 2, 1)])
def test_images_with_the_channels_last_are_refused_with_advice(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.zeros((30, *shape), np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    ways = [
        lambda **kind: from_tensors(x, Y, **kind),
        lambda **kind: from_dataset([*zip(x, Y, strict=True)], **kind),
        lambda **kind: Dataset("mine", x, Y, x, Y, 3, **kind),
        lambda **kind: _resaved(tmp_path / "a.npz", load_npz, **kind),
        lambda **kind: _resaved(tmp_path / "a.npz", load_public_npz, **kind),
    ]
    for read in ways:
        with pytest.raises(DataError, match=r"looks like \(n, H, W, C\).*Try: x.transpose\(0, 3, 1, 2\)"):
            read()
        found = read(layout="chw")  # the user knows better
        assert (found if isinstance(found, np.ndarray) else found.train_x).shape[1:] == shape
        with pytest.raises(DataError, match="layout is 'hwc'; expected \"chw\""):
            read(layout="hwc")
    assert from_tensors(x.transpose(0, 3, 1, 2), Y).sample_shape == (shape[2], *shape[:2])


def _resaved(path: Path, read: Callable[[Path], Any], **kind: str) -> Any:
    with np.load(path) as arrays:
        np.savez(path.with_name("b.npz"), **arrays, **kind)
    return read(path.with_name("b.npz"))


@pytest.mark.parametrize(
    "shape", [(3, 4, 4), (1, 3, 3), (3, 32, 3), (16, 4, 4), (2, 8, 3), (8, 3, 3), (5, 5, 5), (9, 3)]
)
def test_other_shapes_are_taken_as_they_are(shape: tuple[int, ...]) -> None:
    assert from_tensors(np.zeros((30, *shape), np.float32), Y).sample_shape == shape


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"y": Y}, "no array 'x'"),
        ({"x": X}, "no array 'y'"),
        ({"x": X[:29], "y": Y}, "x has 29, y has 30 entries"),
        ({"x": X, "y": Y, "users": np.arange(4)}, "users has 4"),
        ({"x": X, "y": Y.astype(float)}, "y: the values are float64; expected integers"),
        ({"x": X, "y": Y[:, None]}, r"y: shape \(30, 1\); expected \(n,\)"),
        ({"x": X, "y": Y - 1}, "smallest label is -1"),
        ({"x": X, "y": Y + 1}, "none is 0; expected 0 to K-1"),
        ({"x": X, "y": Y * 0}, "all labels are 0"),
        ({"x": X, "y": Y, "n_classes": 2}, "largest label is 2, but n_classes is 2"),
        ({"x": np.where(np.arange(30)[:, None] == 3, np.nan, X), "y": Y}, "x: sample 3 has non-finite values"),
        ({"x": X * 1e300, "y": Y}, "too large"),
        ({"x": X[:, 0], "y": Y}, r"x: shape \(30,\)"),
        ({"x": X.astype(str), "y": Y}, "expected real numbers"),
        ({"x": X, "y": Y, "test_x": X}, "test_x is given without test_y"),
        ({"x": X, "y": Y, "test_x": X[:, :3], "test_y": Y}, r"training samples have shape \(4,\)"),
        ({"x": X[::10], "y": Y[::10]}, "no class has 5 samples"),
    ],
)
def test_unusable_arrays_are_explained(arrays: dict[str, np.ndarray], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=says) as caught:
        load_npz(tmp_path / "bad.npz")
    assert "bad" in str(caught.value)


def test_absent_class_is_accepted_if_the_number_of_classes_is_given(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y + 1, n_classes=5)
    assert load_npz(tmp_path / "a.npz").n_classes == 5


def test_file_that_is_not_an_npz_is_refused_without_unpickling(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, x=X, y=Y)
    intact = path.read_bytes()
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{"a": 1}], dtype=object), y=Y)
    for content in (intact[:-40], intact[: len(intact) // 2], b"", b"text", pickle.dumps([1]), objects.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"not a complete .npz file"):
            load_npz(path)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(DataError, match=r"not a complete .npz file"):
        load_npz(tmp_path / "one.npy")
    with pytest.raises(DataError, match="does not exist"):
        load_npz(tmp_path / "nowhere.npz")


def test_tensors_and_torch_datasets_become_the_same_data() -> None:
    import torch
    from torch.utils.data import TensorDataset

    x, y = torch.tensor(X, dtype=torch.float32, requires_grad=True), torch.tensor(Y)
    tensors = from_tensors(x, y, name="t")
    dataset = from_dataset(TensorDataset(x, y), name="t")
    assert (tensors.train_x == dataset.train_x).all() and (tensors.test_y == dataset.test_y).all()
    both = from_dataset(TensorDataset(x, y), TensorDataset(x[:3], y[:3]), n_classes=4)
    assert len(both.test_y) == 3 and both.n_classes == 4
    with pytest.raises(DataError, match="pairs of sample and label"):
        from_dataset(TensorDataset(x))
    with pytest.raises(DataError, match="there are no samples"):
        from_dataset([])
