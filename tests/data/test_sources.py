"""Readers: the publishers' formats, what is refused, and how errors explain it."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedal.data
from fedal.data import Dataset, data_folder, describe, is_installed, load, names
from fedal.data.check import check
from fedal.data.dataset import normalise
from fedal.data.sources.cifar10 import ArrayUnpickler
from fedal.errors import DataError

MakeIdx = Callable[..., dict[str, np.ndarray]]
REAL_MNIST = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"


# --- the package ------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_importing_the_data_package_imports_none_of_the_heavy_libraries() -> None:
    heavy = "torch scipy sklearn PIL pooch requests rich"
    code = f"import sys, fedal.data, fedal.data.check; print([m for m in '{heavy}'.split() if m in sys.modules])"
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(source)}
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_has_a_description() -> None:
    assert names() == ["digits", "mnist", "fashion-mnist", "svhn", "cifar10", "cinic10", "celeba"]
    for name in names():
        source = describe(name)
        assert source.name == name and source.summary and source.n_classes >= 2 and source.sample_shape


def test_facts_about_a_dataset_are_only_in_its_source() -> None:
    """Settings, simulation and models name no dataset, except for the default of `dataset`."""
    package, found = Path(fedal.data.__file__).parents[1], []
    for folder in ("config", "simulate", "models", "theory", "deploy", "engine"):
        for path in package.glob(f"{folder}/**/*.py"):
            constants = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            found += [(path.name, node.value) for node in constants if node.value in names()]
    assert found == [("settings.py", "digits")]


def test_unknown_name_suggests_the_nearest_one() -> None:
    with pytest.raises(DataError, match=r"unknown dataset 'fashion_mnst'. Did you mean fashion-mnist\?"):
        load("fashion_mnst")


def test_folder_is_the_one_given_then_the_environment_then_the_user_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDAL_DATA", str(tmp_path / "env"))
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder() == tmp_path / "env"
    monkeypatch.setenv("FEDAL_DATA", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "fedal"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert data_folder() == Path.home() / ".cache" / "fedal"


def test_normalise_returns_pixel_over_255_minus_mean_over_std() -> None:
    pixels = np.array([0, 51, 255, 102], np.uint8).reshape(1, 2, 1, 2)
    x = normalise(pixels, (0.5, 0.2), (0.25, 0.5))
    assert x.dtype == np.float32
    np.testing.assert_allclose(x.ravel(), [-2.0, -1.2, 1.6, 0.4], atol=1e-6)


def test_dataset_refuses_labels_outside_its_classes() -> None:
    x, y = np.zeros((2, 3), np.float32), np.array([0, 2])
    with pytest.raises(DataError, match="labels run from 0 to 2; expected 0 to 1"):
        Dataset("d", x, y, x, y, n_classes=2)


# --- not installed, truncated, changed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in names() if name != "digits"])
def test_missing_dataset_names_the_command_and_the_folder(name: str, folder: Path) -> None:
    assert not is_installed(name)
    with pytest.raises(DataError) as caught:
        load(name)
    assert f"Type: fedal data fetch {name}" in str(caught.value)
    assert str(data_folder() / name) in str(caught.value)
    with pytest.raises(DataError, match=f"Type: fedal data fetch {name} --folder {folder}"):
        load(name, folder=folder)


def test_one_missing_file_is_named(folder: Path, tiny_idx: MakeIdx) -> None:
    tiny_idx("mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"missing t10k-labels-idx1-ubyte.gz.*fedal data fetch mnist"):
        load("mnist", folder=folder, accept_unverified=True)


def test_wrong_checksum_names_file_found_expected_and_both_remedies(folder: Path, tiny_idx: MakeIdx) -> None:
    tiny_idx("mnist")
    path = folder / "mnist" / "train-images-idx3-ubyte.gz"
    with pytest.raises(DataError) as caught:
        load("mnist", folder=folder)
    message = str(caught.value)
    assert str(path) in message
    assert f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}" in message
    assert "expected 9,912,422 bytes, md5:f68b3c2dcbeaaa9fbdd348bbdeb94873" in message
    assert "fedal data fetch mnist" in message and "--set accept_unverified=true" in message


def test_svhn_refusal_mentions_the_restored_files(folder: Path, tiny_svhn: np.ndarray) -> None:
    with pytest.raises(DataError, match="SVHN-40k"):
        load("svhn", folder=folder)


def test_truncated_file_is_refused_even_if_unverified_files_are_accepted(
    folder: Path, tiny_idx: MakeIdx, tiny_svhn: np.ndarray, tiny_cifar_binary: np.ndarray
) -> None:
    tiny_idx("mnist")
    for path in (
        folder / "mnist" / "train-images-idx3-ubyte.gz",
        folder / "svhn" / "train_32x32.mat",
        folder / "cifar10" / "cifar-10-batches-bin" / "data_batch_3.bin",
    ):
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(DataError, match=path.name):
            load(path.relative_to(folder).parts[0], folder=folder, accept_unverified=True)


def test_check_lists_every_file_with_its_state(folder: Path, tiny_idx: MakeIdx) -> None:
    tiny_idx("mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    report = check("mnist", folder)
    assert [finding.state for finding in report.findings] == ["wrong size"] * 3 + ["missing"]
    assert not report.ok and len(report.missing) == 1 and len(report.different) == 3
    assert "fedal data fetch mnist" in str(report) and "t10k-labels-idx1-ubyte.gz" in str(report)


def test_max_users_needs_a_dataset_with_users() -> None:
    with pytest.raises(DataError, match="has no users"):
        load("digits", max_users=3)


# --- digits -------------------------------------------------------------------------------------------------------


def test_digits_are_verified_and_every_fifth_is_a_test_image() -> None:
    digits = load("digits")
    assert digits.verified and digits.provenance == "official files, checksum ok"
    assert digits.train_x.shape == (1437, 1, 8, 8) and digits.test_x.shape == (360, 1, 8, 8)
    assert abs(digits.train_x.mean()) < 1e-3 and abs(digits.train_x.std() - 1) < 1e-3
    assert check("digits").ok and is_installed("digits")


def test_digits_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    digits = load("digits")
    assert (digits.test_y == labels[::5]).all()
    np.testing.assert_allclose(digits.test_x.reshape(360, 64) * 0.3763 + 0.3052, images[::5] / 16, atol=1e-6)


def test_damaged_package_data_suggests_reinstalling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = describe("digits").root()
    broken = tmp_path / "sklearn" / "datasets" / "data"
    broken.mkdir(parents=True)
    (tmp_path / "sklearn" / "__init__.py").touch()
    content = (original / "datasets" / "data" / "digits.csv.gz").read_bytes()
    (broken / "digits.csv.gz").write_bytes(content[:-1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    with pytest.raises(DataError, match=r"wrong size.*pip install --force-reinstall scikit-learn"):
        load("digits")


# --- MNIST and Fashion-MNIST --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gzipped", [True, False])
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_idx_files_are_read_packed_and_unpacked(
    name: str, mean: float, std: float, gzipped: bool, folder: Path, tiny_idx: MakeIdx
) -> None:
    arrays = tiny_idx(name, gzipped=gzipped)
    data = load(name, folder=folder, accept_unverified=True)
    assert not data.verified and "accept_unverified" in data.provenance
    assert data.train_x.shape == (20, 1, 28, 28) and data.train_x.dtype == np.float32
    assert (data.train_y == arrays["train-labels-idx1-ubyte"]).all() and data.train_y.dtype == np.int64
    expected = (arrays["t10k-images-idx3-ubyte"][:, None] / 255 - mean) / std
    np.testing.assert_allclose(data.test_x, expected, atol=1e-5)


def test_idx_file_shorter_than_its_header_says_is_refused(folder: Path, tiny_idx: MakeIdx) -> None:
    tiny_idx("mnist")
    path = folder / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-3]))
    with pytest.raises(DataError, match="25 bytes, but its header says 28"):
        load("mnist", folder=folder, accept_unverified=True)


def test_idx_file_of_another_kind_is_refused(folder: Path, tiny_idx: MakeIdx) -> None:
    tiny_idx("mnist")
    shutil.copy(folder / "mnist" / "train-images-idx3-ubyte.gz", folder / "mnist" / "train-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match="starts with 0x00000803, expected 0x00000801"):
        load("mnist", folder=folder, accept_unverified=True)


@pytest.mark.skipif(not REAL_MNIST.is_dir(), reason="the real MNIST is not on this machine")
def test_real_mnist_is_verified() -> None:
    mnist = load("mnist", folder=REAL_MNIST.parent)
    assert mnist.verified
    assert np.bincount(mnist.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert abs(mnist.train_x.mean()) < 1e-3 and abs(mnist.train_x.std() - 1) < 1e-3


# --- SVHN ---------------------------------------------------------------------------------------------------------


def test_svhn_axes_are_transposed_and_label_ten_becomes_zero(folder: Path, tiny_svhn: np.ndarray) -> None:
    data = load("svhn", folder=folder, accept_unverified=True)
    assert data.train_y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    red = (tiny_svhn[5, 3, 30, 0] / 255 - 0.4377) / 0.1980
    assert data.train_x[5, 0, 3, 30] == pytest.approx(red, abs=1e-5)
    assert data.train_x.transpose(0, 2, 3, 1).flags.c_contiguous  # channels innermost in memory


def test_svhn_file_with_other_contents_is_refused(folder: Path, tiny_svhn: np.ndarray) -> None:
    from scipy.io import savemat

    savemat(folder / "svhn" / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1), np.uint8)})
    with pytest.raises(DataError, match="X is float64"):
        load("svhn", folder=folder, accept_unverified=True)
    savemat(folder / "svhn" / "test_32x32.mat", {"other": np.zeros(3)})
    with pytest.raises(DataError, match="not a readable SVHN file"):
        load("svhn", folder=folder, accept_unverified=True)


# --- CIFAR-10 -----------------------------------------------------------------------------------------------------


def _check_cifar(folder: Path, pixels: np.ndarray) -> None:
    data = load("cifar10", folder=folder, accept_unverified=True)
    assert data.train_x.shape == (20, 3, 32, 32) and data.test_x.shape == (4, 3, 32, 32)
    assert data.train_y.tolist() == [0, 1, 2, 3] * 5
    blue = (pixels[2, 2, 7, 9] / 255 - 0.4465) / 0.2010
    assert data.test_x[2, 2, 7, 9] == pytest.approx(blue, abs=1e-5)


def test_cifar_binary_batches_are_read(folder: Path, tiny_cifar_binary: np.ndarray) -> None:
    _check_cifar(folder, tiny_cifar_binary)


def test_cifar_python_batches_are_read(folder: Path, tiny_cifar_pickled: np.ndarray) -> None:
    _check_cifar(folder, tiny_cifar_pickled)


def test_pickle_written_by_python_2_is_read() -> None:
    """As in the original files: text opcodes, no _codecs.encode, the array's bytes as a Python 2 string."""
    written = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x01K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff"
        b"\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03\x01\x80\xfftbU\x06labelsq\x08]q\x09K\x05au."
    )
    batch = ArrayUnpickler(io.BytesIO(written), encoding="latin1").load()
    assert batch["data"].tolist() == [[1, 128, 255]] and batch["labels"] == [5]


def test_malicious_pickle_is_refused_and_does_not_run(
    folder: Path, tiny_cifar_pickled: np.ndarray, tmp_path: Path
) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "owned"),)

    path = folder / "cifar10" / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps({"data": Malicious(), "labels": [0]}, protocol=2))
    with pytest.raises(DataError, match=r"data_batch_2.*imports posix.mkdir, which is not allowed"):
        load("cifar10", folder=folder, accept_unverified=True)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "batch", [{"labels": [0]}, {"data": "text", "labels": [0]}, {"data": np.zeros((4, 3072), np.uint8), "labels": [0]}]
)
def test_pickle_with_other_contents_is_refused(batch: object, folder: Path, tiny_cifar_pickled: np.ndarray) -> None:
    path = folder / "cifar10" / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match="test_batch: not a CIFAR-10 batch"):
        load("cifar10", folder=folder, accept_unverified=True)


# --- CINIC-10 -----------------------------------------------------------------------------------------------------


def test_cinic_is_read_in_the_order_of_classes_and_names(folder: Path, tiny_cinic: np.ndarray) -> None:
    data = load("cinic10", folder=folder, accept_unverified=True)
    assert data.train_y.tolist() == [label for label in range(10) for _ in range(2)]
    red = (tiny_cinic[1, 4, 6, 0] / 255 - 0.47889522) / 0.24205776
    assert data.train_x[3, 0, 4, 6] == pytest.approx(red, abs=1e-5)


def test_cinic_with_other_counts_needs_accept_unverified(folder: Path, tiny_cinic: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"wrong count: found 2 .png files; expected 9,000 .png files"):
        load("cinic10", folder=folder)


def test_damaged_png_is_named(folder: Path, tiny_cinic: np.ndarray) -> None:
    path = folder / "cinic10" / "train" / "cat" / "img-0.png"
    content = path.read_bytes()
    for damaged in (content[:200], b"not a picture", b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{path}: damaged image"):
            load("cinic10", folder=folder, accept_unverified=True)


def test_image_of_another_size_is_refused_before_it_is_decoded(folder: Path, tiny_cinic: np.ndarray) -> None:
    from PIL import Image

    path = folder / "cinic10" / "test" / "dog" / "img-0.png"
    Image.new("RGB", (64, 32)).save(path)
    with pytest.raises(DataError, match="64x32 pixels; expected 32x32"):
        load("cinic10", folder=folder, accept_unverified=True)


# --- CelebA -------------------------------------------------------------------------------------------------------


def test_celeba_users_are_celebrities_with_at_least_five_images(folder: Path, tiny_celeba: Path) -> None:
    data = load("celeba", folder=folder, accept_unverified=True)
    assert data.users is not None
    assert dict(zip(*np.unique(data.users, return_counts=True))) == {3: 18, 7: 4}  # 20 - 2 and 5 - 1
    assert len(data.test_y) == 3 and data.n_classes == 2
    assert data.train_x.shape == (22, 3, 84, 84)
    assert data.train_y.tolist() == [0, 1] + [0] * 16 + [0, 1, 0, 0]


def test_celeba_takes_the_centre_square(folder: Path, tiny_celeba: Path) -> None:
    data = load("celeba", folder=folder, accept_unverified=True, max_users=1)
    first = data.train_x[0]  # image 6 of the list, a plain picture of 8 * 5 with white above and below the centre
    assert np.abs(first[:, 3:-3] - (40 / 255 - 0.5) / 0.5).max() < 0.03


def test_celeba_decodes_only_the_requested_users(folder: Path, tiny_celeba: Path) -> None:
    for i in range(1, 6):
        (tiny_celeba / "img_align_celeba" / f"{i:06d}.jpg").unlink()  # those of celebrity 7
    data = load("celeba", folder=folder, accept_unverified=True, max_users=1)
    assert data.users is not None and set(data.users) == {3}
    with pytest.raises(DataError, match=r"000001.jpg: this image is missing"):
        load("celeba", folder=folder, accept_unverified=True, max_users=2)
    with pytest.raises(DataError, match="max_users=0; expected at least 1"):
        load("celeba", folder=folder, max_users=0)


def test_celeba_damaged_lists_are_named_with_the_line(folder: Path, tiny_celeba: Path) -> None:
    attributes = tiny_celeba / "list_attr_celeba.txt"
    intact = attributes.read_text()
    attributes.write_text(intact.replace("Smiling", "Frowning"))
    with pytest.raises(DataError, match="does not name the attribute Smiling"):
        load("celeba", folder=folder, accept_unverified=True)
    attributes.write_text(intact[: intact.rindex(" ")])
    with pytest.raises(DataError, match=r"list_attr_celeba.txt, line 31"):
        load("celeba", folder=folder, accept_unverified=True)
    attributes.write_text(intact)
    with (tiny_celeba / "identity_CelebA.txt").open("a") as file:
        file.write("../../secret.jpg 7\n")
    with pytest.raises(DataError, match=r"line 30: ../../secret.jpg is not the name of an image"):
        load("celeba", folder=folder, accept_unverified=True)


def test_celeba_lists_are_verified_by_checksum(folder: Path, tiny_celeba: Path) -> None:
    with pytest.raises(DataError, match=r"list_attr_celeba.txt: wrong checksum.*md5:75e246fa4810816ffd6ee81facbd244c"):
        load("celeba", folder=folder)
