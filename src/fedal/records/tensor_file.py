"""The safetensors format, for files that are written tensor by tensor: a header, then all numbers without gaps."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any, BinaryIO

import torch
from torch import Tensor

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Layout:
    """Where tensors will lie in a file: the widest numbers first, so that all are aligned."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[torch.dtype, list[int], int]] = {}

    def add(self, name: str, tensor: Tensor) -> str:
        """The name under which the file will have it."""
        if tensor.dtype not in TYPES:
            raise TypeError(f"{name}: numbers of type {tensor.dtype} cannot be saved")
        name = new_name(name, self._entries)
        self._entries[name] = tensor.dtype, list(tensor.shape), tensor.numel() * tensor.element_size()
        return name

    def begin(self, file: BinaryIO) -> Iterator[int]:
        """Writes the header and gives the place of each tensor, in the order in which they were added."""
        header: dict[str, Any] = {}
        starts: dict[str, int] = {}
        end = 0
        for name, (dtype, shape, size) in sorted(self._entries.items(), key=lambda entry: -entry[1][0].itemsize):
            starts[name], end = end, end + size
            header[name] = {"dtype": TYPES[dtype], "shape": shape, "data_offsets": [starts[name], end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        before = file.write(len(text).to_bytes(8, "little") + text)
        return iter([before + starts[name] for name in self._entries])


def content(tensor: Tensor) -> memoryview:
    """Its numbers as the file has them, without a copy where that is possible."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def new_name(name: str, taken: Container[str]) -> str:
    """The name itself, or one like it that is free: {"a": {"b": ...}, "a/b": ...} has two of one path."""
    while name in taken:
        name += "'"
    return name
