"""Custom models as `package.module:factory`, and the check of a model's output shape."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedal.errors import ConfigError
from fedal.models import build, check_output_width

NETS = """
import functools
from torch import nn

def both(input_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], n_classes))

def swapped(n_classes, input_shape, hidden=5):
    return nn.Sequential(nn.Linear(input_shape[0], hidden), nn.Linear(hidden, n_classes))

def only_classes(*, n_classes):
    return nn.Linear(6, n_classes)

def torch_style(num_classes=1000, **other):
    assert not other
    return nn.Linear(6, num_classes)

def nothing():
    return nn.Linear(6, 3)

class Net(nn.Linear):
    def __init__(self, n_classes):
        super().__init__(6, n_classes)

class Zoo:
    tiny = staticmethod(nothing)

partial = functools.partial(swapped, hidden=2)
greedy = lambda n_classes, depth: nn.Linear(6, n_classes)
not_a_module = lambda: "a string"
ready = nn.Linear(6, 3)
number = 3

def broken():
    raise RuntimeError("no weights\\nin the cellar")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory; leaves neither sys.path nor sys.modules changed."""
    (tmp_path / "my_own_nets.py").write_text(NETS)
    (tmp_path / "my_damaged_nets.py").write_text("import torch\nfrom torch import there_is_no_such_thing\n")
    (tmp_path / "my_crashing_nets.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return "my_own_nets"


@pytest.mark.parametrize("factory", ["both", "swapped", "only_classes", "torch_style", "nothing", "Net", "Zoo.tiny"])
def test_a_factory_gets_the_arguments_in_its_signature(nets, factory):
    model = build(f"{nets}:{factory}", (6,), 3)
    assert model(torch.zeros(2, 6)).shape == (2, 3)


def test_a_partial_keeps_its_arguments(nets):
    assert build(f"{nets}:partial", (6,), 3)[0].out_features == 2


def test_every_call_creates_a_new_model(nets):
    assert build(f"{nets}:nothing", (6,), 3) is not build(f"{nets}:nothing", (6,), 3)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("greedy", 'requires "depth"'),
        ("not_a_module", "returned str; expected a torch.nn.Module"),
        ("ready", "not a factory"),
        ("number", "expected a function or class, found int"),
        ("absent", "has no absent"),
        ("broken", "failed with RuntimeError: no weights in the cellar"),
    ],
)
def test_a_factory_that_cannot_be_used_is_explained(nets, factory, message):
    with pytest.raises(ConfigError, match=f'"{nets}:{factory}".*{message}'):
        build(f"{nets}:{factory}", (6,), 3)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package_anywhere:make", "No module named 'no_such_package_anywhere'"),
        ("my_damaged_nets:make", "there_is_no_such_thing"),
        ("my_crashing_nets:make", "ZeroDivisionError"),
        (":make", "expected package.module:name"),
        ("my_own_nets:", "expected package.module:name"),
        (".my_own_nets:make", "expected package.module:name"),
    ],
)
def test_a_failed_import_says_what_failed(nets, path, message):
    with pytest.raises(ConfigError, match=message):
        build(path, (6,), 3)


def test_the_current_directory_is_searched_last_and_added_once(nets):
    before = list(sys.path)
    build(f"{nets}:nothing", (6,), 3)
    build(f"{nets}:both", (6,), 3)
    assert sys.path == [*before, str(Path.cwd())]


class Counting(nn.Module):
    """Changes a buffer in every call, even in evaluation mode."""

    calls: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.norm(self.linear(x))


def test_the_width_check_does_not_change_the_model():
    model = Counting(3).train()
    model.norm.eval()  # a part that its owner froze
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_output_width(model, (4,), 3)
    assert model.training and model.linear.training and not model.norm.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_wrong_width_names_model_and_both_shapes():
    with pytest.raises(ConfigError, match=r'"my:net" returned shape \(2, 9\) .*; expected \(2, 10\)'):
        check_output_width(nn.Linear(4, 9), (4,), 10, name="my:net")


class Empty(nn.Module):
    def forward(self, x):
        return ()


def test_an_output_that_is_not_a_batch_of_logits_is_refused():
    with pytest.raises(ConfigError, match=r'"Conv2d" .*\(2, 10, 8, 8\)'):
        check_output_width(nn.Conv2d(1, 10, 1), (1, 8, 8), 10)
    with pytest.raises(ConfigError, match=r'"LSTM" returned shape \(2, 3, 10\)'):  # the first entry of a tuple
        check_output_width(nn.LSTM(4, 10), (3, 4), 10)
    with pytest.raises(ConfigError, match=r"returned tuple; expected .* \(no logits in a tuple\)"):
        check_output_width(Empty(), (3, 4), 10)


def test_a_model_that_cannot_take_the_shape_quotes_torch_in_one_line():
    with pytest.raises(
        ConfigError, match=r"cannot take samples of shape \(5,\): RuntimeError: mat1 and mat2"
    ) as caught:
        check_output_width(nn.Linear(4, 10), (5,), 10)
    assert "\n" not in str(caught.value)
