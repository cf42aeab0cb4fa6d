"""Messages as protobuf and back. A tensor is dtype + shape + raw bytes; its exact length is known before it is read.

A `Reader` takes only the kinds that the method declares, with exactly their fields, and finds every mistake before the
message exists. Nothing is unpickled, imported or evaluated.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedal.engine.grpc import fedal_pb2 as pb
from fedal.engine.grpc.refusals import Code, Refused
from fedal.messages import Message

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST = 1e6  # of an output or its gradient: far beyond any sound logit, far below overflow of a sum
MAX_TENSORS = 4096
MAX_AXES = 8
HEADER_BYTES = 4096  # names, numbers and framing of a message without free axes

assert sys.byteorder == "little", "the wire format is little-endian"


def encode(message: Message) -> pb.Payload:
    payload = pb.Payload(kind=type(message).__name__)
    for name in message.header_fields():
        payload.numbers[name] = getattr(message, name)
    for name, tensor in message.tensors().items():
        data = tensor.numpy(force=True).tobytes()  # in the order of the indices, wherever they lie
        payload.tensors.add(name=name, dtype=NAMES[tensor.dtype], shape=tensor.shape, data=data)
    return payload


class Reader:
    """Reads payloads of one direction of a run. What it gives is complete, sound and a copy.

    The wire makes the same checks inside one process; here each mistake has a code.
    """

    def __init__(self, declared: Iterable[type[Message]], sizes: Mapping[str, int], dtype: torch.dtype) -> None:
        self._kinds = {kind.__name__: kind for kind in declared}
        self._sizes = {**sizes, "*": None}  # any length
        self._dtype = dtype

    def read(self, payload: pb.Payload) -> Message:
        """The message; Refused if it is none of the declared kinds, incomplete or unsound."""
        kind = self._kinds.get(payload.kind)
        if kind is None:
            declared = ", ".join(self._kinds)
            raise Refused(Code.UNDECLARED, f"a message of kind {payload.kind[:40]!r}; declared: {declared}.")
        numbers = dict(payload.numbers)
        if numbers.keys() != set(kind.header_fields()):
            raise Refused(Code.WRONG_FIELDS, f"{kind.__name__} has the numbers {sorted(kind.header_fields())}.")
        if len(payload.tensors) > MAX_TENSORS:
            raise Refused(Code.WRONG_FIELDS, f"{len(payload.tensors)} tensors; the limit is {MAX_TENSORS}.")
        raw = {tensor.name: tensor for tensor in payload.tensors}
        free = not kind.layout  # Weights: any names
        if len(raw) != len(payload.tensors) or (raw.keys() != kind.layout.keys() and not free):
            raise Refused(Code.WRONG_FIELDS, f"{kind.__name__} has the tensors {sorted(kind.layout) or 'of a model'}.")
        tensors = {name: self._tensor(kind, name, tensor) for name, tensor in raw.items()}
        if free:
            return kind(**{kind.payload_fields()[0]: tensors}, **numbers)
        return kind(**tensors, **numbers)

    def _tensor(self, kind: type[Message], name: str, tensor: pb.Tensor) -> Tensor:
        shape, dtype = tuple(tensor.shape), DTYPES.get(tensor.dtype)
        if dtype is None:
            raise Refused(Code.WRONG_DTYPE, f"numbers of type {tensor.dtype[:40]!r}; there are {', '.join(DTYPES)}.")
        if len(shape) > MAX_AXES:
            raise Refused(Code.WRONG_SHAPE, f"{len(shape)} axes; a tensor has at most {MAX_AXES}.")
        expected = math.prod(shape) * dtype.itemsize
        if len(tensor.data) != expected:
            raise Refused(
                Code.WRONG_LENGTH, f"{len(tensor.data)} bytes; {list(shape)} of {tensor.dtype} are {expected}."
            )
        axes = kind.layout.get(name)
        if axes is not None:
            lengths = tuple(self._sizes[axis] for axis in axes)
            if lengths != shape and not _fits(shape, lengths):
                raise Refused(Code.WRONG_SHAPE, f"{name} has shape {shape}; expected {lengths}.")
        wanted = DTYPES[kind.whole_numbers[name]] if name in kind.whole_numbers else self._dtype
        if dtype != wanted and (axes is not None or dtype.is_floating_point):
            raise Refused(Code.WRONG_DTYPE, f"{name} has numbers of type {dtype}; expected {wanted}.")
        array = np.frombuffer(tensor.data, tensor.dtype)
        if dtype.is_floating_point and array.size:
            _refuse_unsound(name, float(np.abs(array).max()))  # nan if any is
        return torch.from_numpy(array.reshape(shape).copy())


def _fits(shape: tuple[int, ...], lengths: tuple[int | None, ...]) -> bool:
    return len(shape) == len(lengths) and all(
        wanted in (None, found) for found, wanted in zip(shape, lengths, strict=True)
    )


def _refuse_unsound(name: str, largest: float) -> None:
    if not math.isfinite(largest):
        raise Refused(Code.NOT_FINITE, f"{name} holds numbers that are not finite.")
    if largest > LARGEST:
        raise Refused(Code.OUT_OF_RANGE, f"{name} holds numbers beyond {LARGEST:g}.")


def largest_message(kinds: Iterable[type[Message]], sizes: Mapping[str, int], cap: int) -> int:
    """Bytes of the largest message of these kinds; `cap` where a kind has free axes."""
    bound = HEADER_BYTES
    for kind in kinds:
        if not kind.layout or any("*" in axes for axes in kind.layout.values()):
            return cap
        numbers = sum(math.prod(sizes[axis] for axis in axes) for axes in kind.layout.values())
        bound = max(bound, HEADER_BYTES + 8 * numbers)
    return bound


def manifest(public_x: NDArray[Any]) -> str:
    """The name of a public set: sha256 over type, shape and bytes."""
    head = f"{public_x.dtype.str}|{','.join(map(str, public_x.shape))}|".encode()
    return hashlib.sha256(head + np.ascontiguousarray(public_x).tobytes()).hexdigest()
