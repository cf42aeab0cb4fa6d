"""Tensors of a checkpoint in one file, one after the other: written as they arrive, memory-mapped when read.

The checkpoint's JSON, which is written last, holds their positions. So each state is produced once and never held
twice. The header of a safetensors file needs all tensors before the first is written.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

ALIGNED = 64  # bytes: alignment of each tensor
TYPES = {str(kind).removeprefix("torch."): kind for kind in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip


def write_tensor(file: BinaryIO, name: str, tensor: Tensor) -> dict[str, Any]:
    """Appends the data of a tensor; returns the place that `read_tensor` expects."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in TYPES:
        raise TypeError(f"{name}: a tensor of type {tensor.dtype} cannot be saved")
    file.write(b"\0" * (-file.tell() % ALIGNED))
    start = file.tell()
    file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {"type": kind, "shape": list(tensor.shape), "start": start}


def open_tensors(path: Path) -> Tensor:
    """All bytes of the file, memory-mapped."""
    size = path.stat().st_size
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else torch.empty(0).byte()


def read_tensor(content: Tensor, place: dict[str, Any]) -> Tensor:
    """The tensor at `place` in an open file; raises ValueError, KeyError or TypeError for an invalid place."""
    kind, shape, start = TYPES[place["type"]], [int(length) for length in place["shape"]], int(place["start"])
    end = start + math.prod(shape) * kind.itemsize
    if start < 0 or start % kind.itemsize or end > len(content) or min(shape, default=0) < 0:
        raise ValueError(f"a tensor from byte {start} to {end} in a file of {len(content)}")
    return content[start:end].view(kind).view(shape)
