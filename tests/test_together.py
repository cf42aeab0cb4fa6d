"""The messages of a stack, which stay together on the way to the server and back."""

from __future__ import annotations

import pytest
import torch

from fedal.messages import Consensus, GuidedOutputs, GuidedTeacher, Outputs, Teacher, Together
from fedal.methods.outputs.fedal import guided
from fedal.methods.server import stack_outputs

NAMES = ("a", "b", "c")


def outputs() -> Together:
    return Together(NAMES, Outputs(torch.arange(24.0).view(3, 4, 2)))


def test_it_is_a_mapping_of_the_messages_of_single_clients() -> None:
    together = outputs()
    assert [*together] == [*NAMES] and len(together) == 3 and "b" in together and "d" not in together
    alone = together["b"]
    assert isinstance(alone, Outputs) and torch.equal(alone.values, torch.arange(8.0, 16.0).view(4, 2))
    with pytest.raises(KeyError):
        together["d"]


def test_a_server_gets_all_outputs_without_taking_them_apart() -> None:
    together = outputs()
    present, f = stack_outputs(NAMES, together)
    assert present == [*NAMES] and f is together.joined.values  # type: ignore[attr-defined]
    apart, copied = stack_outputs(NAMES, dict(together))
    assert apart == present and torch.equal(copied, f)


def test_a_server_that_asks_for_fewer_clients_or_another_order_gets_those() -> None:
    together = outputs()
    present, f = stack_outputs(("c", "a"), together)
    assert present == ["c", "a"] and torch.equal(f, torch.stack([together["c"].values, together["a"].values]))  # type: ignore[attr-defined]


def test_the_replies_to_all_are_those_to_each() -> None:
    grads = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).transpose(1, 2)  # class by class in memory
    value = torch.rand(4, 2)
    for taught in (Consensus(value, 3), Teacher(value), Outputs(value)):
        joined = guided(taught, grads)
        for index, reply in enumerate(joined.split(3)):
            assert torch.equal(reply.grad, grads[index])  # type: ignore[attr-defined]
            assert torch.equal(reply.mean if isinstance(taught, Consensus) else reply.values, value)  # type: ignore[attr-defined]
    assert isinstance(guided(Teacher(value), grads), GuidedTeacher)
    assert isinstance(guided(Outputs(value), grads), GuidedOutputs)
