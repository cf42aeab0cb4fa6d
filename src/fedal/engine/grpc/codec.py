"""Messages as protobuf and back. A tensor is dtype + shape + raw bytes; its exact length is known before it is read.

`decode` takes only the kinds that the method declares, with exactly their fields, and finds every mistake before the
message exists. Nothing is unpickled, imported or evaluated.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
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
HEADER_BYTES = 4096  # names, numbers and framing of a message without free axes

assert sys.byteorder == "little", "the wire format is little-endian"


def encode(message: Message) -> pb.Payload:
    payload = pb.Payload(kind=type(message).__name__)
    for field in fields(message):
        if field.name not in message.payload_fields():
            payload.numbers[field.name] = getattr(message, field.name)
    for name, tensor in message.tensors().items():
        array = tensor.detach().cpu().contiguous().numpy()
        payload.tensors.add(name=name, dtype=NAMES[tensor.dtype], shape=tensor.shape, data=array.tobytes())
    return payload


def decode(payload: pb.Payload, declared: Iterable[type[Message]]) -> Message:
    """The message, if it is one of the declared kinds and complete; else Refused."""
    kinds = {kind.__name__: kind for kind in declared}
    if payload.kind not in kinds:
        raise Refused(Code.UNDECLARED, f"a message of kind {payload.kind[:40]!r}; declared: {', '.join(kinds)}.")
    kind = kinds[payload.kind]
    numbers = {field.name for field in fields(kind)} - set(kind.payload_fields())
    if set(payload.numbers) != numbers:
        raise Refused(Code.WRONG_FIELDS, f"{kind.__name__} has the numbers {sorted(numbers)}.")
    free = not kind.layout  # Weights: any names
    names = [tensor.name for tensor in payload.tensors]
    if len(set(names)) != len(names) or (set(names) != set(kind.layout) and not free) or len(names) > MAX_TENSORS:
        raise Refused(Code.WRONG_FIELDS, f"{kind.__name__} has the tensors {sorted(kind.layout) or 'of a model'}.")
    tensors = {tensor.name: decode_tensor(tensor) for tensor in payload.tensors}
    if free:
        return kind(**{kind.payload_fields()[0]: tensors}, **dict(payload.numbers))
    return kind(**tensors, **dict(payload.numbers))


def decode_tensor(tensor: pb.Tensor) -> Tensor:
    if tensor.dtype not in DTYPES:
        raise Refused(Code.WRONG_DTYPE, f"numbers of type {tensor.dtype[:40]!r}; there are {', '.join(DTYPES)}.")
    if len(tensor.shape) > 8:
        raise Refused(Code.WRONG_SHAPE, f"{len(tensor.shape)} axes; a tensor has at most 8.")
    expected = math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
    if len(tensor.data) != expected:
        raise Refused(
            Code.WRONG_LENGTH, f"{len(tensor.data)} bytes; {list(tensor.shape)} of {tensor.dtype} are {expected}."
        )
    array = np.frombuffer(tensor.data, np.dtype(tensor.dtype)).reshape(tuple(tensor.shape))
    return torch.from_numpy(array.copy())


def check_values(message: Message, sizes: Mapping[str, int], dtype: torch.dtype) -> None:
    """What the wire checks again when it counts, here with a code for each mistake."""
    for name, tensor in message.tensors().items():
        axes = message.axes_of(name)
        if axes is not None:
            lengths = [None if axis == "*" else sizes[axis] for axis in axes]
            fits = tensor.dim() == len(lengths) and all(
                wanted in (None, found) for wanted, found in zip(lengths, tensor.shape, strict=True)
            )
            if not fits:
                raise Refused(Code.WRONG_SHAPE, f"{name} has shape {tuple(tensor.shape)}; expected {tuple(lengths)}.")
        wanted = DTYPES[message.whole_numbers[name]] if name in message.whole_numbers else dtype
        if tensor.dtype != wanted and (axes is not None or tensor.is_floating_point()):
            raise Refused(Code.WRONG_DTYPE, f"{name} has numbers of type {tensor.dtype}; expected {wanted}.")
        if tensor.is_floating_point() and tensor.numel():
            largest = float(np.abs(tensor.numpy()).max())  # nan if any is
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
