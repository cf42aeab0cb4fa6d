"""Converts messages to protobuf and back. A tensor is dtype + shape + raw bytes; its length is checked before reading.

A `Reader` accepts only the kinds that the method declares, with exactly their fields, and rejects every error before
it builds the message. Nothing is unpickled, imported or evaluated.
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

from fedal.content import ContentCheck
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.refusals import Code, Refused
from fedal.messages import LARGEST, Message

NUMPY = {name: np.dtype(name) for name in ("float32", "float64", "int32", "int64", "uint8")}
NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in NUMPY}
LARGEST_SQUARE = LARGEST**2
MAX_TENSORS = 4096
MAX_AXES = 8
HEADER_BYTES = 4096  # allowance for names, numbers and framing in a message of fixed size

assert sys.byteorder == "little", "the wire format is little-endian"


def encode(message: Message, payload: pb.Payload | None = None) -> pb.Payload:
    """The message as a payload. Writes into `payload` if given, so that a part of a larger message needs no copy."""
    payload = pb.Payload() if payload is None else payload
    payload.kind = type(message).__name__
    for name in message.header_fields():
        payload.numbers[name] = getattr(message, name)
    for name, tensor in message.tensors().items():
        array = tensor.numpy(
            force=tensor.requires_grad or not tensor.is_cpu
        )  # an unconditional `force` costs four more calls
        data = array.tobytes()  # in C order, whatever the memory layout
        payload.tensors.add(name=name, dtype=NAMES[tensor.dtype], shape=tensor.shape, data=data)
    return payload


@dataclass(frozen=True)
class _Form:
    """The required form of a tensor: the length of each axis (None: any) and the dtype."""

    lengths: tuple[int | None, ...] | None  # None: any shape
    dtype: str

    @cached_property
    def exact(self) -> tuple[tuple[int, ...], str, int] | None:
        """The required shape, dtype and byte count, if there is only one choice."""
        if self.lengths is None or None in self.lengths:
            return None
        shape = tuple(length for length in self.lengths if length is not None)
        return shape, self.dtype, math.prod(shape) * NUMPY[self.dtype].itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        if self.lengths is None or self.lengths == shape:
            return True
        return len(shape) == len(self.lengths) and all(
            expected in (None, found) for found, expected in zip(shape, self.lengths, strict=True)
        )


class Reader:
    """Reads the payloads of one direction of a run. Returned messages are complete, valid and own their memory.

    The wire makes the same checks inside one process; here each error has a code.
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
        self._content = ContentCheck(self._kinds.values(), sizes)
        self._any_form = _Form(None, NAMES[dtype])  # Weights: any names and shapes

    def read(self, payload: pb.Payload) -> Message:
        """The message. Raises Refused if it is undeclared, incomplete or invalid."""
        kind = self._kinds.get(payload.kind)
        if kind is None:
            declared = ", ".join(self._kinds)
            raise Refused(Code.UNDECLARED, f"undeclared message kind {payload.kind[:40]!r}; expected {declared}.")
        names, found = kind.header_fields(), payload.numbers
        if len(found) != len(names) or not all(map(found.__contains__, names)):
            raise Refused(Code.WRONG_FIELDS, f"{kind.__name__}: wrong numbers; expected {sorted(names)}.")
        numbers = {name: found[name] for name in names}
        if len(payload.tensors) > MAX_TENSORS:
            raise Refused(Code.WRONG_FIELDS, f"{len(payload.tensors)} tensors; the limit is {MAX_TENSORS}.")
        raw = {tensor.name: tensor for tensor in payload.tensors}
        forms = self._forms[kind]
        if len(raw) != len(payload.tensors) or (raw.keys() != forms.keys() and forms):
            expected = sorted(forms) or "the tensors of a model"
            raise Refused(Code.WRONG_FIELDS, f"{kind.__name__}: wrong tensors; expected {expected}.")
        tensors = {name: _read_tensor(name, tensor, forms.get(name, self._any_form)) for name, tensor in raw.items()}
        fields: dict[str, Any] = tensors if forms else {kind.payload_fields()[0]: tensors}
        message = kind(**fields, **numbers)
        misfit = self._content.misfit(message)
        if misfit is not None:
            raise Refused(Code.CONTENT, f"{kind.__name__}.{misfit.field} {misfit.text}.")
        return message


def _read_tensor(name: str, tensor: pb.Tensor, form: _Form) -> Tensor:
    shape, found, data = tuple(tensor.shape), tensor.dtype, tensor.data
    if (shape, found, len(data)) != form.exact:
        _refuse_misfit(name, shape, found, len(data), form)
    dtype = NUMPY[found]
    array = np.frombuffer(bytearray(data), dtype)
    if dtype.kind == "f":
        _refuse_bad_values(name, array)
    return torch.from_numpy(array.reshape(shape))


def _refuse_misfit(name: str, shape: tuple[int, ...], found: str, size: int, form: _Form) -> None:
    dtype = NUMPY.get(found)
    if dtype is None:
        raise Refused(Code.WRONG_DTYPE, f"{name} has dtype {found[:40]!r}; expected one of {', '.join(NUMPY)}.")
    if len(shape) > MAX_AXES:
        raise Refused(Code.WRONG_SHAPE, f"{name} has {len(shape)} axes; the limit is {MAX_AXES}.")
    expected = math.prod(shape) * dtype.itemsize
    if size != expected:
        raise Refused(Code.WRONG_LENGTH, f"{name} has {size} bytes; {list(shape)} of {found} needs {expected}.")
    if not form.fits(shape):
        raise Refused(Code.WRONG_SHAPE, f"{name} has shape {shape}; expected {form.lengths}.")
    if found != form.dtype and (form.lengths is not None or dtype.kind == "f"):  # a model may hold integer counters
        raise Refused(Code.WRONG_DTYPE, f"{name} has dtype {found}; expected {form.dtype}.")


def _refuse_bad_values(name: str, array: NDArray[Any]) -> None:
    if np.vdot(array, array) <= LARGEST_SQUARE:  # bounds every single square; never true for nan
        return
    largest = float(np.abs(array).max())  # nan if any value is nan
    if not math.isfinite(largest):
        raise Refused(Code.NOT_FINITE, f"{name} holds non-finite values.")
    if largest > LARGEST:
        raise Refused(Code.OUT_OF_RANGE, f"{name} holds values beyond {LARGEST:g}.")


def largest_message(kinds: Iterable[type[Message]], sizes: Mapping[str, int], cap: int) -> int:
    """Size in bytes of the largest message of these kinds; `cap` if a kind has free axes."""
    bound = HEADER_BYTES
    for kind in kinds:
        if not kind.layout or any("*" in axes for axes in kind.layout.values()):
            return cap
        numbers = sum(math.prod(sizes[axis] for axis in axes) for axes in kind.layout.values())
        bound = max(bound, HEADER_BYTES + 8 * numbers)
    return bound
