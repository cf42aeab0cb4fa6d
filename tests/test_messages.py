"""The messages and their declarations."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedal import messages, methods
from fedal.messages import Consensus, Guidance, GuidedOutputs, GuidedTeacher, Leak, Message, Outputs, Teacher, in_words
from fedal.methods.client import ClientLogic
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions


def test_a_message_cannot_be_changed() -> None:
    message = Consensus(torch.zeros(2, 3), 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.count = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_every_field_of_a_message_is_payload_or_an_integer(name: str) -> None:
    method = methods.get(name)
    for kind in method.up + method.down:
        fields = {field.name: field.type for field in dataclasses.fields(kind)}
        assert set(kind.payload_fields()) <= fields.keys()
        assert {field for field in fields if fields[field] != "int"} == set(kind.payload_fields())


PAPER = ("local", "fedmd", "fedmd-lf", "fedal")


def test_no_message_of_the_papers_methods_can_carry_parameters() -> None:
    """All axes are samples of the public batch or classes: no message has the shape of a model."""
    kinds = {kind for name in PAPER for kind in methods.get(name).up + methods.get(name).down}
    assert kinds == {Outputs, Consensus, Guidance, Teacher, GuidedOutputs, GuidedTeacher}
    for kind in kinds:
        assert all(axes == ("B", "K") for axes in kind.layout.values())


def test_a_black_box_method_has_no_message_of_free_shape() -> None:
    """Only a message with a module may hold tensors of unknown shape, and its leak says who trained that module."""
    for kind in every_message():
        assert kind.layout or kind.leak & (messages.NOT_BLACK_BOX | Leak.SERVER_MODULE), kind.__name__


def every_message() -> list[type[Message]]:
    """All messages, of methods and of none."""
    return [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)][1:]


TRAINED_ON_PRIVATE_DATA = Leak.PARAMETERS | Leak.PARAMETER_STATISTICS | Leak.PRIVATE_MODULE


@pytest.mark.parametrize("kind", every_message(), ids=lambda kind: kind.__name__)
def test_what_a_client_trained_on_private_data_is_never_black_box(kind: type[Message]) -> None:
    """Whatever has the shape of a module is not black-box when it is uploaded; in the other direction by its leak."""
    if kind.leak & Leak.SERVER_MODULE:
        with pytest.raises(TypeError, match="not a module of the server alone"):
            Method("uploading", "", MethodOptions, ClientLogic, up=(kind,))
        return
    for direction in ("up", "down"):
        method = Method("sending", "", MethodOptions, ClientLogic, **{direction: (kind,)})
        assert method.black_box == (bool(kind.layout) and not kind.leak & TRAINED_ON_PRIVATE_DATA)


def test_the_methods_of_the_paper_are_black_box_by_computation() -> None:
    reveals = {name: methods.get(name).reveals for name in PAPER}
    assert reveals["local"] == Leak.NOTHING
    assert reveals["fedmd"] == reveals["fedmd-lf"] == Leak.PUBLIC_OUTPUTS
    assert reveals["fedal"] == Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS
    assert all(methods.get(name).black_box for name in PAPER)


@pytest.mark.parametrize("leak", [*messages.NOT_BLACK_BOX, Leak.PARAMETERS | Leak.PUBLIC_OUTPUTS])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_method_that_sends_weights_cannot_claim_to_be_black_box(leak: Leak, direction: str) -> None:
    revealing = type("Revealing", (Message,), {"leak": leak})
    method = Method("averaging", "", MethodOptions, ClientLogic, **{direction: (revealing,)})
    assert not method.black_box and method.exchanges


def test_a_message_must_declare_what_it_reveals() -> None:
    with pytest.raises(TypeError, match="Silent does not declare what it reveals"):
        type("Silent", (Message,), {})
    assert type("Inheriting", (Outputs,), {}).leak == Leak.PUBLIC_OUTPUTS


def test_leaks_in_words() -> None:
    assert in_words(Leak.NOTHING) == "nothing"
    assert in_words(Guidance.leak) == "outputs on public data, gradients w.r.t. those outputs"
    assert in_words(Leak.PARAMETERS | Leak.ARCHITECTURE) == "model parameters, model architecture"


def test_every_leak_has_words() -> None:
    assert all(in_words(flag) != "nothing" for flag in Leak)
