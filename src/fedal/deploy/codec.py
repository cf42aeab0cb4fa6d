"""Messages as protobuf and back. A tensor is dtype + shape + raw bytes; its exact length is known before it is read.

A `Reader` takes only the kinds that the method declares, with exactly their fields, and finds every mistake before the
message exists. Nothing is unpickled, imported or evaluated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.refusals import Code, Refused
from fedal.messages import Message

NUMPY = {name: np.dtype(name) for name in ("float32", "float64", "int32", "int64", "uint8")}
NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in NUMPY}
LARGEST = 1e6  # of an output or its gradient: far beyond any sound logit, far below overflow of a sum
LARGEST_SQUARE = LARGEST**2
MAX_TENSORS = 4096
MAX_AXES = 8
HEADER_BYTES = 4096  # names, numbers and framing of a message without free axes

assert sys.byteorder == "little", "the wire format is little-endian"


def encode(message: Message, payload: pb.Payload | None = None) -> pb.Payload:
    """The message as a payload: a new one, or one that is a part of what will be sent, so that nothing is copied."""
    payload = pb.Payload() if payload is None else payload
    payload.kind = type(message).__name__
    for name in message.header_fields():
        payload.numbers[name] = getattr(message, name)
    for name, tensor in message.tensors().items():
        array = tensor.numpy(force=tensor.requires_grad or not tensor.is_cpu)  # `force` alone costs four more calls
        data = array.tobytes()  # in the order of the indices, wherever they lie
        payload.tensors.add(name=name, dtype=NAMES[tensor.dtype], shape=tensor.shape, data=data)
    return payload


@dataclass(frozen=True)
class _Form:
    """What a tensor of a declared kind must be: length of each axis, None for any length; type of its numbers."""

    lengths: tuple[int | None, ...] | None  # None: any shape
    dtype: str

    @cached_property
    def exact(self) -> tuple[tuple[int, ...], str, int] | None:
        """The only shape, type and number of bytes that will do, if there is only one."""
        if self.lengths is None or None in self.lengths:
            return None
        shape = tuple(length for length in self.lengths if length is not None)
        return shape, self.dtype, math.prod(shape) * NUMPY[self.dtype].itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        if self.lengths is None or self.lengths == shape:
            return True
        return len(shape) == len(self.lengths) and all(
            wanted in (None, found) for found, wanted in zip(shape, self.lengths, strict=True)
        )


class Reader:
    """Reads payloads of one direction of a run. What it gives is complete, sound and a copy.

    The wire makes the same checks inside one process; here each mistake has a code.
    """

    def __init__(self, declared: Iterable[type[Message]], sizes: Mapping[str, int], dtype: torch.dtype) -> None:
        lengths = {**sizes, "*": None}
        self._kinds = {kind.__name__: kind for kind in declared}
        self._forms = {
            kind: {
                name: _Form(tuple(lengths[axis] for axis in axes), kind.integer_fields.get(name, NAMES[dtype]))
                for name, axes in kind.layout.items()
            }
            for kind in self._kinds.values()
        }
        self._of_a_model = _Form(None, NAMES[dtype])  # Weights: any names and shapes

    def read(self, payload: pb.Payload) -> Message:
        """The message; Refused if it is none of the declared kinds, incomplete or unsound."""
        kind = self._kinds.get(payload.kind)
        if kind is None:
            declared = ", ".join(self._kinds)
            raise Refused(Code.UNDECLARED, f"a message of kind {payload.kind[:40]!r}; declared: {declared}.")
        names, found = kind.header_fields(), payload.numbers
        if len(found) != len(names) or not all(map(found.__contains__, names)):
            raise Refused(Code.WRONG_FIELDS, f"{kind.__name__} has the numbers {sorted(names)}.")
        numbers = {name: found[name] for name in names}
        if len(payload.tensors) > MAX_TENSORS:
            raise Refused(Code.WRONG_FIELDS, f"{len(payload.tensors)} tensors; the limit is {MAX_TENSORS}.")
        raw = {tensor.name: tensor for tensor in payload.tensors}
        forms = self._forms[kind]
        if len(raw) != len(payload.tensors) or (raw.keys() != forms.keys() and forms):
            raise Refused(Code.WRONG_FIELDS, f"{kind.__name__} has the tensors {sorted(forms) or 'of a model'}.")
        tensors = {name: _read_tensor(name, tensor, forms.get(name, self._of_a_model)) for name, tensor in raw.items()}
        if not forms:
            return kind(**{kind.payload_fields()[0]: tensors}, **numbers)
        return kind(**tensors, **numbers)


def _read_tensor(name: str, tensor: pb.Tensor, form: _Form) -> Tensor:
    shape, found, data = tuple(tensor.shape), tensor.dtype, tensor.data
    if (shape, found, len(data)) != form.exact:
        _refuse_misfit(name, shape, found, len(data), form)
    dtype = NUMPY[found]
    array = np.frombuffer(bytearray(data), dtype)
    if dtype.kind == "f":
        _refuse_unsound(name, array)
    return torch.from_numpy(array.reshape(shape))


def _refuse_misfit(name: str, shape: tuple[int, ...], found: str, size: int, form: _Form) -> None:
    dtype = NUMPY.get(found)
    if dtype is None:
        raise Refused(Code.WRONG_DTYPE, f"numbers of type {found[:40]!r}; there are {', '.join(NUMPY)}.")
    if len(shape) > MAX_AXES:
        raise Refused(Code.WRONG_SHAPE, f"{len(shape)} axes; a tensor has at most {MAX_AXES}.")
    expected = math.prod(shape) * dtype.itemsize
    if size != expected:
        raise Refused(Code.WRONG_LENGTH, f"{size} bytes; {list(shape)} of {found} are {expected}.")
    if not form.fits(shape):
        raise Refused(Code.WRONG_SHAPE, f"{name} has shape {shape}; expected {form.lengths}.")
    if found != form.dtype and (form.lengths is not None or dtype.kind == "f"):  # a model may count in whole numbers
        raise Refused(Code.WRONG_DTYPE, f"{name} has numbers of type {found}; expected {form.dtype}.")


def _refuse_unsound(name: str, array: NDArray[Any]) -> None:
    if np.vdot(array, array) <= LARGEST_SQUARE:  # so is each of the squares; never true of nan
        return
    largest = float(np.abs(array).max())  # nan if any is
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
