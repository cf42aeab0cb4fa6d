"""The content of messages: integers outside their declared range, and fields that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedal import methods
from fedal.errors import WireError
from fedal.messages import (
    MAX_SAMPLES,
    ClassFeatures,
    ClassInputs,
    ClassLogits,
    ClassOutputs,
    Codes,
    Consensus,
    MeanInputOutputs,
    Message,
    PrivateSamples,
    Weights,
)
from fedal.quantise import UNQUANTISED, LabelCodec
from fedal.wire import Wire

SIZES = {"B": 2, "K": 3, "d": 4, "x": 5}


def features(counts: list[int], rows: int) -> ClassFeatures:
    return ClassFeatures(torch.ones(rows, 4), torch.tensor(counts, dtype=torch.int32))


def table(kind: Any, counts: list[int], filled: list[float]) -> Message:
    rows = torch.tensor(filled)[:, None].expand(3, 5 if kind is ClassInputs else 3).clone()
    return kind(rows, torch.tensor(counts, dtype=torch.int32))  # type: ignore[no-any-return]


def samples(*labels: int) -> PrivateSamples:
    return PrivateSamples(torch.zeros(2, 4), torch.zeros(2, 3), torch.tensor(labels, dtype=torch.int32))


def weights(**numbers: int) -> Weights:
    return Weights({"w": torch.zeros(2)}, **{"samples": 1, **numbers})


GOOD: list[Message] = [
    samples(0, 2),
    features([3, 0, 1], 2),
    features([0, 0, 0], 0),
    table(ClassOutputs, [1, 0, 2], [1 / 3, 0.0, 1 / 3]),
    table(ClassLogits, [1, 0, 2], [-7.0, 0.0, 7.0]),
    MeanInputOutputs(torch.eye(3) * torch.tensor([[1.0], [0.0], [1.0]])),
    table(ClassInputs, [1, 0, 2], [1.0, -0.0, 0.0]),
    weights(samples=1),
    weights(samples=MAX_SAMPLES, members=9),
    Codes(torch.zeros(1, dtype=torch.uint8), 1),
    Consensus(torch.zeros(2, 3), 1),
]
BAD: list[tuple[Message, str]] = [
    (samples(0, 3), r"PrivateSamples.labels from client \"a\" holds 3; expected 0 to 2."),
    (samples(-1, 2), "labels .* holds -1; expected 0 to 2"),
    (features([3, 0, 1], 3), "rows .* has 3 rows for 2 classes"),
    (features([3, 0, 1], 1), "rows .* has 1 rows for 2 classes"),
    (features([-1, 0, 1], 1), "counts .* holds -1; expected 0 to"),
    (table(ClassOutputs, [1, 0, 2], [1 / 3, 0.5, 1 / 3]), "values .* in row 1, whose count is 0"),
    (table(ClassOutputs, [1, 0, 2], [1 / 3, 0.0, 1e6]), "values .* not a distribution: .* sum off by 3e"),
    (table(ClassLogits, [1, 0, 2], [1.0, 0.5, 1.0]), "values .* in row 1, whose count is 0"),
    (MeanInputOutputs(torch.tensor([[1.5, -0.5, 0.0]] * 3)), "values .* not a distribution: lowest value -0.5"),
    (table(ClassInputs, [0, 0, 2], [0.0, 0.0, 1.0]).with_tensors({"counts": torch.tensor([0, -2, 2]).int()}), "counts"),
    (table(ClassInputs, [1, 1, 0], [0.0, 0.0, 1.0]), "values .* in row 2"),
    (weights(samples=0), "samples .* is 0; expected 1 to"),
    (weights(samples=-1), "samples .* is -1"),
    (weights(samples=2**62), f"samples .* is {2**62}; expected 1 to {MAX_SAMPLES}"),
    (weights(members=0), "members .* is 0"),
    (Codes(torch.zeros(1, dtype=torch.uint8), 2), "begins .* is 2; expected 0 to 1"),
    (Consensus(torch.zeros(2, 3), 0), "count .* is 0"),
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_content_within_its_declarations_crosses(message: Message) -> None:
    kind = type(message)
    assert isinstance(Wire((kind,), (kind,), SIZES, torch.float32).up("a", message, None, None), kind)


@pytest.mark.parametrize(("message", "said"), BAD, ids=lambda value: value if isinstance(value, str) else None)
def test_other_content_is_refused_by_field_and_not_counted(message: Message, said: str) -> None:
    wire = Wire((type(message),), (type(message),), SIZES, torch.float32)
    with pytest.raises(WireError, match=said):
        wire.up("a", message, None, None)
    with pytest.raises(WireError, match=r'to client "a"'):
        wire.down("a", message)
    assert not wire.up_bytes and not wire.down_bytes


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_every_integer_of_every_message_has_a_range(name: str) -> None:
    method = methods.get(name)
    for kind in method.up + method.down:
        assert {*kind.header_fields(), *kind.integer_fields} == kind.ranges.keys(), kind.__name__


@pytest.mark.parametrize("bits", [1, 2, UNQUANTISED])
def test_malformed_codes_are_refused_before_the_codec_remembers_anything(bits: int) -> None:
    ids, labels = torch.arange(2).numpy(), torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    sender, receiver = (LabelCodec(bits, 4, 3, delta=True) for _ in range(2))
    first = sender.encode(labels, ids)
    before = {name: value.clone() for name, value in receiver.state_dict().items()}
    receiver.refuse_malformed(first, ids, torch.float32, begins=True)
    for wrong in (first[:-1], torch.cat([first, first[:1]]), torch.full_like(first, 255)):
        with pytest.raises(Exception, match="soft label"):
            receiver.refuse_malformed(wrong, ids, torch.float32, begins=True)
    assert all(torch.equal(value, before[name]) for name, value in receiver.state_dict().items())
    receiver.decode(first, ids, torch.float32, "cpu")
    if bits != UNQUANTISED:  # now two zero bits suffice; they do not if the codes were dropped
        again = sender.encode(labels, ids)
        receiver.refuse_malformed(again, ids, torch.float32, begins=False)
        with pytest.raises(WireError):
            receiver.refuse_malformed(again[:0], ids, torch.float32, begins=True)


def test_unquantised_soft_labels_beyond_the_limit_are_refused() -> None:
    codec, ids = LabelCodec(UNQUANTISED, 4, 3, delta=False), torch.arange(1).numpy()
    with pytest.raises(WireError, match="beyond 1e\\+06"):
        codec.decode(codec.encode(torch.full((1, 3), 2e6), ids), ids, torch.float32, "cpu")
