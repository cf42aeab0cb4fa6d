"""A data file claims no more than it holds, and no more than fits in memory; nothing is allocated before."""

from __future__ import annotations

import io
import os
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedal.data import npz
from fedal.data.custom import load_npz, load_public_npz
from fedal.data.split import read_counts
from fedal.errors import CheckpointError, DataError, FedalError

READERS: list[tuple[Callable[[Path], Any], type[FedalError]]] = [
    (load_npz, DataError), (load_public_npz, DataError), (read_counts, CheckpointError),
]  # fmt: skip


def npy(shape: tuple[int, ...], content: bytes = b"", kind: str = "<f8") -> bytes:
    """An .npy file whose header claims this shape."""
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": kind, "fortran_order": False, "shape": shape})
    return raw.getvalue() + content


def written(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in ("x", "y", "class_counts", "leftovers"):
            archive.writestr(f"{name}.npy", content)
    return path


CLAIMS = {"2^60 numbers": (2**60,), "2^33 numbers": (2**33,), "one number more": (5,), "one less": (3,),
          "a product beyond 64 bits": (2**40, 2**40), "a negative length": (-1, 4)}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize(("read", "expected"), READERS)
def test_a_header_that_claims_more_or_less_than_the_file_holds_is_refused(
    read: Callable[[Path], Any], expected: type[FedalError], claim: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.npz", npy(CLAIMS[claim], b"\0" * 32))
    tracemalloc.start()
    with pytest.raises(expected, match=r"a\.npz.*claims"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("read", "expected"), READERS)
def test_arrays_larger_than_memory_are_refused_before_they_are_unpacked(
    read: Callable[[Path], Any], expected: type[FedalError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "total_memory", lambda: 10**6)
    path = written(tmp_path / "bomb.npz", npy((40_000,), b"\0" * 320_000), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000
    with pytest.raises(expected, match="this machine has"):
        read(path)


@pytest.mark.parametrize(("read", "expected"), READERS)
def test_a_pipe_is_refused_and_does_not_block(
    read: Callable[[Path], Any], expected: type[FedalError], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    failure: list[BaseException] = []

    def attempt() -> None:
        try:
            read(tmp_path / "pipe.npz")
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(10)
    assert failure and isinstance(failure[0], expected) and "not a file" in str(failure[0])
