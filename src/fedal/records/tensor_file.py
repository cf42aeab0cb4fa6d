"""Tensors of a checkpoint in one file, one after the other: written as they come, read as pages of the file.

Where each lies is said in the checkpoint's JSON, which is written last, so a state is asked for once and never held
twice. A safetensors file would have to know all tensors before the first number is written.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

ALIGNED = 64  # bytes: where a tensor begins
TYPES = {str(kind).removeprefix("torch."): kind for kind in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip


def write_tensor(file: BinaryIO, name: str, tensor: Tensor) -> dict[str, Any]:
    """Appends the numbers of a tensor; gives what `read_tensor` needs to find them."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in TYPES:
        raise TypeError(f"{name}: numbers of type {tensor.dtype} cannot be saved")
    file.write(b"\0" * (-file.tell() % ALIGNED))
    start = file.tell()
    file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {"type": kind, "shape": list(tensor.shape), "start": start}


def open_tensors(path: Path) -> Tensor:
    """All bytes of the file, read when they are looked at."""
    size = path.stat().st_size
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else torch.empty(0).byte()


def read_tensor(content: Tensor, place: dict[str, Any]) -> Tensor:
    """A tensor in an open file; raises ValueError, KeyError or TypeError for a place that is none."""
    kind, shape, start = TYPES[place["type"]], [int(length) for length in place["shape"]], int(place["start"])
    end = start + math.prod(shape) * kind.itemsize
    if start < 0 or start % kind.itemsize or end > len(content) or min(shape, default=0) < 0:
        raise ValueError(f"a tensor from byte {start} to {end} in a file of {len(content)}")
    return content[start:end].view(kind).view(shape)
