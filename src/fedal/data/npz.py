"""Checks an .npz file before any array in it is read: what it claims, what it holds, whether that fits in memory."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedal.machine import total_memory

UNREADABLE = (
    OSError, EOFError, ValueError, TypeError, KeyError, RuntimeError, MemoryError, OverflowError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
"""What NumPy and zipfile raise for anything but a complete .npz file of plain arrays."""

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def refuse_bad_npz(path: Path) -> None:
    """Raises one of UNREADABLE for a file that is not worth reading.

    A header of 128 bytes can claim 2^60 numbers, a small zip file can hold a terabyte of zeros, and a pipe blocks.
    """
    if not path.is_file():
        raise ValueError("not a file")
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > total_memory():
            raise ValueError(f"its arrays take {size / 1e9:.0f} GB; this machine has {total_memory() / 1e9:.0f} GB")
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                _refuse_wrong_size(archive, member)


def _refuse_wrong_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} has format {version[0]}.{version[1]}; expected 1.0 or 2.0")
        shape, _, dtype = HEADERS[version](file)
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
    if claimed != held and not dtype.hasobject:  # NumPy refuses objects itself
        raise ValueError(f"{member.filename} claims {claimed} bytes of numbers and holds {held}")
