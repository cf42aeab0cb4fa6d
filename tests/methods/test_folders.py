"""A method is in the folder of the most revealing thing that it sends."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from functools import reduce
from operator import or_

import pytest

from fedal import methods
from fedal.messages import ClassOutputs, Leak, Message, Outputs, PrivateAnswers, PublicFeatures, Weights
from fedal.methods.method import Method

FOLDERS = {  # folder -> what its methods may reveal in addition to everything listed before
    "outputs": Leak.PUBLIC_OUTPUTS | Leak.OUTPUT_GRADIENTS | Leak.SERVER_MODULE,  # the server's own computation
    "features": Leak.FEATURE_GEOMETRY | Leak.PUBLIC_FEATURES,
    "statistics": Leak.CLASS_FEATURES
    | Leak.CLASS_OUTPUTS
    | Leak.LABEL_COUNTS
    | Leak.CLASS_INPUTS
    | Leak.PRIVATE_DENSITY,
    "samples": Leak.PRIVATE_OUTPUTS | Leak.PRIVATE_FEATURES | Leak.PRIVATE_LABELS,
    "parameters": Leak.PARAMETERS | Leak.ARCHITECTURE | Leak.PARAMETER_STATISTICS | Leak.PRIVATE_MODULE,
}


def folder_of(method: Method) -> str:
    """The folder of a method: the last one whose leaks it has any of."""
    return [folder for folder, leak in FOLDERS.items() if leak & method.reveals or folder == "outputs"][-1]


def keeps_the_promise(method: Method, module: str) -> bool:
    return module.split(".")[2] == folder_of(method)


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_a_method_is_one_short_file(name: str) -> None:
    """It reads like an algorithm box; what two methods share has a file of its own."""
    source = inspect.getsource(importlib.import_module(methods.MODULES[name].partition(":")[0]))
    assert source.count("\n") <= 150


@pytest.mark.parametrize("name", list(methods.MODULES))
def test_every_method_is_in_the_folder_of_what_it_reveals(name: str) -> None:
    assert keeps_the_promise(methods.get(name), methods.MODULES[name])


@pytest.mark.parametrize("message", [PublicFeatures, ClassOutputs, PrivateAnswers, Weights])
def test_a_method_that_reveals_more_than_its_folder_is_found(message: type[Message]) -> None:
    honest = methods.get("fedmd")
    for more in ({"up": (Outputs, message)}, {"down": (message,)}):
        assert not keeps_the_promise(dataclasses.replace(honest, **more), methods.MODULES["fedmd"])


def test_a_method_that_reveals_less_than_its_folder_is_found_too() -> None:
    assert not keeps_the_promise(methods.get("fedmd"), methods.MODULES["fedavg"])


def test_every_leak_belongs_to_one_folder() -> None:
    assert reduce(or_, FOLDERS.values()) == reduce(or_, Leak)
    assert sum(len(list(leak)) for leak in FOLDERS.values()) == len(Leak)
