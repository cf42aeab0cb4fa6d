"""The wire: what it refuses, that the receiver gets a copy, and that every byte is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedal.errors import NonFiniteError, WireError
from fedal.messages import Consensus, Guidance, Leak, Message, Outputs, Together
from fedal.wire import Wire
from splits import BATCH, CLASSES, NETS, build_federation, run_rounds


def fedal_wire(dtype: torch.dtype = torch.float32, batch: int = 4, classes: int = 3) -> Wire:
    return Wire((Outputs,), (Guidance,), {"B": batch, "K": classes}, dtype)


def guidance(**changes: Any) -> Guidance:
    return Guidance(**{"mean": torch.zeros(4, 3), "grad": torch.ones(4, 3), "count": 2, **changes})


def test_messages_arrive_unchanged() -> None:
    wire, sent = fedal_wire(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(wire.up("a", Outputs(sent), "x", "x").values, sent)
    received = wire.down("a", guidance())
    assert received.count == 2 and received.grad.eq(1).all() and received.mean.eq(0).all()


def test_the_receiver_gets_a_copy_without_a_graph() -> None:
    wire = fedal_wire()
    sent = torch.zeros(4, 3, requires_grad=True)
    received = wire.up("a", Outputs(sent * 2), "x", "x").values
    assert not received.requires_grad and received.grad_fn is None
    mean = torch.zeros(4, 3)
    first, second = wire.down("a", guidance(mean=mean)), wire.down("b", guidance(mean=mean))
    first.mean.fill_(7.0)
    mean.fill_(5.0)
    assert second.mean.eq(0).all()


@pytest.mark.parametrize(("batch", "classes"), [(32, 10), (8, 3), (1, 2)])
def test_fedal_costs_four_bytes_per_logit_up_and_eight_down(batch: int, classes: int) -> None:
    wire = fedal_wire(batch=batch, classes=classes)
    f = torch.zeros(batch, classes)
    for _ in range(3):
        wire.up("a", Outputs(f), None, None)
        wire.down("a", Guidance(f, f, 2))
    wire.up("b", Outputs(f), None, None)
    assert wire.up_bytes == {"a": 3 * 4 * classes * batch, "b": 4 * classes * batch}
    assert wire.down_bytes == {"a": 3 * 8 * classes * batch}


def test_an_expanded_tensor_counts_all_its_elements() -> None:
    wire = fedal_wire()
    wire.up("a", Outputs(torch.zeros(()).expand(4, 3)), None, None)
    assert wire.up_bytes["a"] == 4 * 4 * 3


@pytest.mark.parametrize(
    ("method", "up", "down"), [("local", 0, 0), ("fedmd", 4, 4), ("fedmd-lf", 4, 4), ("fedal", 4, 8)]
)
def test_a_run_costs_exactly_what_the_algorithm_sends(method: str, up: int, down: int) -> None:
    wire = run_rounds(build_federation(method, tau=3), 2).wire
    numbers = 2 * 3 * BATCH * CLASSES
    assert dict(wire.up_bytes) == (dict.fromkeys(NETS, up * numbers) if up else {})
    assert dict(wire.down_bytes) == (dict.fromkeys(NETS, down * numbers) if down else {})


@pytest.mark.parametrize(
    "message",
    [Consensus(torch.zeros(4, 3), 2), guidance(), torch.zeros(4, 3), {"values": torch.zeros(4, 3)}, None],
    ids=lambda message: type(message).__name__,
)
def test_only_the_declared_type_goes_up(message: object) -> None:
    with pytest.raises(WireError, match='from client "a": this method declares Outputs in that direction'):
        fedal_wire().up("a", message, None, None)


def test_only_the_declared_type_comes_down() -> None:
    with pytest.raises(WireError, match='Outputs to client "a": this method declares Guidance'):
        fedal_wire().down("a", Outputs(torch.zeros(4, 3)))


def test_a_subclass_of_a_declared_type_is_refused() -> None:
    @dataclass(frozen=True)
    class More(Outputs):
        weights: Any = None

    with pytest.raises(WireError, match="More from client"):
        fedal_wire().up("a", More(torch.zeros(4, 3), {"w": 1}), None, None)


def test_a_method_that_declares_nothing_sends_nothing() -> None:
    with pytest.raises(WireError, match="declares nothing"):
        Wire((), (), {}, torch.float32).up("a", Outputs(torch.zeros(4, 3)), None, None)


@pytest.mark.parametrize("shape", [(3, 4), (4, 2), (5, 3), (12,), (1, 4, 3), (0, 3)])
def test_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError, match=r'Outputs.values from client "a" has shape .*; expected \(B = 4, K = 3\)'):
        fedal_wire().up("a", Outputs(torch.zeros(shape)), None, None)
    with pytest.raises(WireError, match=r'Guidance.grad to client "a" has shape'):
        fedal_wire().down("a", guidance(grad=torch.zeros(shape)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_a_wrong_dtype_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(WireError, match=f"has dtype {dtype}; this run uses torch.float32"):
        fedal_wire().up("a", Outputs(torch.zeros(4, 3, dtype=dtype)), None, None)


def test_a_field_that_is_not_a_tensor_is_refused() -> None:
    with pytest.raises(WireError, match="is a list; expected a tensor"):
        fedal_wire().up("a", Outputs([[0.0] * 3] * 4), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_refused_in_both_directions(number: float) -> None:
    bad = torch.zeros(4, 3)
    bad[2, 1] = number
    with pytest.raises(NonFiniteError, match=r'Outputs.values from client "a" contains non-finite values'):
        fedal_wire().up("a", Outputs(bad), None, None)
    with pytest.raises(NonFiniteError, match=r'Guidance.grad to client "a"'):
        fedal_wire().down("a", guidance(grad=bad))


@pytest.mark.parametrize(("batch", "expected"), [("other", "this"), (None, "this"), ("other", None)])
def test_an_answer_for_another_batch_is_refused(batch: str | None, expected: str | None) -> None:
    with pytest.raises(WireError, match=f'client "a" answered for public batch {batch}; this exchange'):
        fedal_wire().up("a", Outputs(torch.zeros(4, 3)), batch, expected)


@pytest.mark.parametrize("hidden", [torch.zeros(100), {"w": 1.0}, 2.5, "text", True])
def test_only_integers_travel_besides_the_tensors(hidden: object) -> None:
    with pytest.raises(WireError, match=r"Guidance.count to client .* is a .*: only the tensors of its layout"):
        fedal_wire().down("a", guidance(count=hidden))


def test_an_unknown_axis_is_refused() -> None:
    @dataclass(frozen=True)
    class Layer(Message):
        weight: Tensor
        leak = Leak.PARAMETERS
        layout = {"weight": ("inputs", "K")}  # noqa: RUF012

    with pytest.raises(WireError, match='has an axis "inputs"; the axes of this run are B, K'):
        Wire((Layer,), (), {"B": 4, "K": 3}, torch.float32).up("a", Layer(torch.zeros(5, 3)), None, None)


def test_refused_messages_are_not_counted() -> None:
    wire = fedal_wire()
    with pytest.raises(NonFiniteError):
        wire.down("a", guidance(grad=torch.full((4, 3), torch.nan)))
    assert wire.down_bytes.total() == 0


def test_meters_continue_after_a_restore() -> None:
    wire, again = fedal_wire(), fedal_wire()
    wire.up("a", Outputs(torch.zeros(4, 3)), None, None)
    again.load_state_dict(wire.state_dict())
    for each in (wire, again):
        each.up("a", Outputs(torch.zeros(4, 3)), None, None)
    assert again.up_bytes == wire.up_bytes == {"a": 2 * 48}


# a stack: one message for several clients

NAMES = ("a", "b", "c")


def stacked_outputs() -> Outputs:
    return Outputs(torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0)))


def test_a_stack_sends_and_receives_what_its_clients_would() -> None:
    together, alone, sent = fedal_wire(), fedal_wire(), stacked_outputs()
    received = together.up_together(Together(NAMES, sent), "x", "x")
    expected = [alone.up(name, own, "x", "x") for name, own in zip(NAMES, sent.split(3), strict=True)]
    assert [torch.equal(a.values, b.values) for a, b in zip(received.values(), expected, strict=True)] == [True] * 3
    replies = [guidance(grad=torch.full((4, 3), float(n), requires_grad=True)) for n in range(3)]
    joined = together.down_together(dict(zip(NAMES, replies, strict=True)))
    for name, own, reply in zip(NAMES, joined.split(3), replies, strict=True):
        copy = alone.down(name, reply)
        assert torch.equal(own.mean, copy.mean) and torch.equal(own.grad, copy.grad) and own.count == copy.count
    assert not joined.grad.requires_grad
    assert together.state_dict() == alone.state_dict()


def test_a_stack_gets_copies() -> None:
    wire, sent, reply = fedal_wire(), stacked_outputs(), guidance()
    received = wire.up_together(Together(NAMES, sent), "x", "x")
    joined = wire.down_together(dict.fromkeys(NAMES, reply))
    before = received["b"].values.clone()
    sent.values.zero_()
    reply.grad.zero_()
    received["a"].values.fill_(9.0)
    assert torch.equal(received["b"].values, before) and joined.grad.eq(1).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"grad": torch.full((4, 3), torch.nan)}, r'Guidance.grad to client "b" contains non-finite'),
        ({"grad": torch.zeros(4, 2)}, r'Guidance.grad to client "b" has shape \(4, 2\)'),
        ({"grad": torch.zeros(4, 3).half()}, r'Guidance.grad to client "b" has dtype torch.float16'),
        ({"mean": [1.0]}, r'Guidance.mean to client "b" is a list'),
        ({"count": True}, r'Guidance.count to client "b" is a bool'),
        ({"count": 0}, r'Guidance.count to client "b" is 0'),
    ],
)
def test_one_bad_reply_to_a_stack_is_named(change: dict[str, Any], error: str) -> None:
    wire = fedal_wire()
    with pytest.raises((WireError, NonFiniteError), match=error):
        wire.down_together(dict(zip(NAMES, [guidance(), guidance(**change), guidance()], strict=True)))


def test_one_bad_upload_of_a_stack_is_named() -> None:
    wire, sent = fedal_wire(), stacked_outputs()
    with pytest.raises(WireError, match=r'client "a" answered for public batch y'):
        wire.up_together(Together(NAMES, sent), "y", "x")
    with pytest.raises(WireError, match=r"Consensus from client"):
        wire.up_together(Together(NAMES, Consensus(sent.values, 2)), "x", "x")
    with pytest.raises(WireError, match=r'Outputs.values from client "a" has dtype torch.float64'):
        wire.up_together(Together(NAMES, Outputs(sent.values.double())), "x", "x")
    sent.values[2, 0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=r'Outputs.values from client "c" contains non-finite'):
        wire.up_together(Together(NAMES, sent), "x", "x")
    other = wire.down_together({name: guidance(count=2) for name in NAMES})
    assert other.grad.shape == (3, 4, 3)
