"""The folder of a method says the most revealing thing that it sends."""

from __future__ import annotations

import dataclasses
from functools import reduce
from operator import or_

import pytest

from fedal import methods
from fedal.messages import ClassOutputs, Leak, Message, Outputs, PrivateAnswers, PublicFeatures, Weights
from fedal.methods.method import Method


def keeps_the_promise(method: Method, module: str) -> bool:
    return module.split(".")[2] == methods.folder_of(method)


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_every_method_lies_where_what_it_reveals_belongs(name: str) -> None:
    assert keeps_the_promise(methods.get(name), methods.MODULES[name])


@pytest.mark.parametrize("message", [PublicFeatures, ClassOutputs, PrivateAnswers, Weights])
def test_a_method_that_reveals_more_than_its_folder_is_found(message: type[Message]) -> None:
    honest = methods.get("fedmd")
    for more in ({"up": (Outputs, message)}, {"down": (message,)}):
        assert not keeps_the_promise(dataclasses.replace(honest, **more), methods.MODULES["fedmd"])


def test_a_method_that_reveals_less_than_its_folder_is_found_too() -> None:
    assert not keeps_the_promise(methods.get("fedmd"), methods.MODULES["fedavg"])


def test_every_leak_belongs_to_one_folder() -> None:
    assert reduce(or_, methods.FOLDERS.values()) == reduce(or_, Leak)
    assert sum(len(list(leak)) for leak in methods.FOLDERS.values()) == len(Leak)
