"""Messages to bytes and back, and the compiled contract compared with its source."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import fedal.messages
from deployments import pb
from fedal.deploy.codec import Reader, encode, largest_message
from fedal.deploy.refusals import Refused
from fedal.messages import (
    ClassOutputs,
    MeanInputOutputs,
    Message,
    NewLabels,
    Outputs,
    SelectedTeacher,
    Teacher,
    Weights,
)
from optional import needs
from splits import same_bits

SIZES = {"B": 4, "B-1": 3, "K": 5, "d": 6, "x": 7, "C": 2, "*": 5, "s": 3}
KINDS = [kind for kind in vars(fedal.messages).values() if isinstance(kind, type) and issubclass(kind, Message)]


def example(kind: type[Message]) -> Message:
    if kind is Weights:
        return Weights({"a.weight": torch.randn(3, 2), "steps": torch.tensor(7)}, 5, 2)
    if not kind.layout:  # all tensors of a module
        return kind({"a.weight": torch.randn(3, 2)})  # type: ignore[call-arg]
    numbers = {field.name: 1 for field in fields(kind) if field.name not in kind.layout}
    tensors = {}
    for name, axes in kind.layout.items():
        dtype = getattr(torch, kind.integer_fields.get(name, "float32"))
        count = math.prod(SIZES[axis] for axis in axes)
        first = int(name in kind.integer_fields)  # counts from 1: a row for every class
        tensors[name] = torch.arange(first, first + count).reshape([SIZES[axis] for axis in axes]).to(dtype)
        if name in kind.ranges:  # every row counts, so 1 where 0 is allowed too
            high = kind.ranges[name].high
            tensors[name] = tensors[name].clamp(max=SIZES[high] - 1 if isinstance(high, str) else high)
    if issubclass(kind, Teacher | NewLabels | SelectedTeacher | ClassOutputs | MeanInputOutputs):
        tensors["values"] = torch.softmax(tensors["values"], -1)
    return kind(**tensors, **numbers)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Message])
def test_a_decoded_message_equals_the_original(kind: type[Message]) -> None:
    sent = example(kind)
    raw = encode(sent).SerializeToString()
    arrived = Reader([kind], SIZES, torch.float32).read(pb.Payload.FromString(raw))
    assert type(arrived) is kind
    assert same_bits(vars(arrived), vars(sent))


@pytest.mark.parametrize("row", [[0.5, 0.4, 0.0, 0.0, 0.0], [1.5, -0.5, 0.0, 0.0, 0.0]])
def test_a_teacher_whose_rows_are_not_distributions_is_refused(row: list[float]) -> None:
    sent = Teacher(torch.tensor([[1.0, 0, 0, 0, 0]] * 3 + [row]))
    with pytest.raises(Refused, match=r"Teacher\.values has a row that is not a distribution"):
        Reader([Teacher], SIZES, torch.float32).read(encode(sent))


def test_the_largest_message_size_is_known_in_advance() -> None:
    bound = largest_message([Outputs], SIZES, 1 << 28)
    assert len(encode(example(Outputs)).SerializeToString()) <= bound < 10_000
    assert largest_message([Weights], SIZES, 1 << 28) == 1 << 28


@pytest.mark.processes
def test_the_compiled_contract_matches_its_source(tmp_path: Path) -> None:
    needs("grpc_tools", "dev")
    source = Path(fedal.__file__).parent / "deploy"
    made = tmp_path / "fedal.binpb"
    words = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"--descriptor_set_out={made}", "fedal.proto"]
    subprocess.run(words, check=True)
    assert made.read_bytes() == (source / "fedal.binpb").read_bytes()
