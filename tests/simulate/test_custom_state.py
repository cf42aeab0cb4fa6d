"""Users' models in a run: state outside `state_dict` is carried or refused, and so are models that cannot train."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fedal as package
from commands import fedal
from e2e.lives import outcome
from fedal.data import load
from fedal.errors import ConfigError, FedalError
from observers import StopAt

pytestmark = pytest.mark.usefixtures("empty_folder")

NETS = """
import torch
from torch import nn

def body(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

class Centred(nn.Module):  # subtracts a running mean of the inputs, like BatchNorm
    def __init__(self):
        super().__init__()
        self.body = body()
        self.keep()
    def keep(self):
        self.register_buffer("running", torch.zeros(1, 8, 8), persistent=False)
    def forward(self, x):
        if self.training:
            self.running = 0.7 * self.running + 0.3 * x.mean(0)
        return self.body(30 * (x - self.running))

class Created(Centred):  # the buffer appears in the first training pass
    def keep(self):
        self.register_buffer("running", None, persistent=False)
    def forward(self, x):
        if self.running is None:
            if not self.training:
                return self.body(30 * x)
            self.running = torch.zeros(1, 8, 8)
        return super().forward(x)

class Attribute(Centred):
    def keep(self):
        self.running = torch.zeros(1, 8, 8)

class Warming(nn.Module):  # a number instead of a tensor
    def __init__(self):
        super().__init__()
        self.body, self.steps = body(), 0
    def forward(self, x):
        self.steps += self.training
        return self.body(x) * min(1.0, self.steps / 100)

class Hidden(Warming):  # not even an attribute of a module
    def __init__(self):
        super().__init__()
        self.seen = [0]
    def forward(self, x):
        self.seen[0] += self.training
        return self.body(x) * self.seen[0]

class Harmless(nn.Module):  # counts its calls and remembers its last outputs, without any effect
    def __init__(self):
        super().__init__()
        self.body, self.calls, self.last = body(), 0, None
    def forward(self, x):
        self.calls += 1
        f = self.body(x)
        self.last = f.detach()
        return f

class WithGraph(Harmless):
    def forward(self, x):
        self.last = self.body(x)
        return self.last

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body()
    def forward(self, x):
        return nn.functional.dropout(self.body(x), training=self.training)

class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.phase = body(), nn.Parameter(torch.ones(10, dtype=torch.complex64))
    def forward(self, x):
        return self.body(x) * self.phase.abs()

class Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body()
    def forward(self, x): return self.body(x)
    def get_extra_state(self): return {"a": 1}
    def set_extra_state(self, state): pass

class Parameterless(nn.Module):
    def forward(self, x): return x.flatten(1)[:, :10]

def frozen(): return body().requires_grad_(False)
def lazy(): return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10))
def old_norm(): return nn.Sequential(nn.Flatten(), torch.nn.utils.weight_norm(nn.Linear(64, 10)))
def new_norm(): return nn.Sequential(nn.Flatten(), torch.nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)))
def spectral(): return nn.Sequential(nn.Flatten(), torch.nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))
"""

SETTINGS = dict(clients=2, rounds=6, tau=2, batch_size=8, checkpoint_every=1, eval_every=4)


@pytest.fixture
def nets(custom_module: Callable[[str, str], None]) -> None:
    custom_module("own_nets", NETS)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("name", ["Centred", "Created", "Harmless", "lazy", "new_norm", "spectral"])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_the_exported_model_is_the_recorded_one_and_a_resumed_run_has_the_same_bits(name: str) -> None:
    config = package.Config(models=f"own_nets:{name}", **SETTINGS)  # type: ignore[arg-type]
    whole = package.run(config, "whole")
    data = load("digits")
    x, y = torch.as_tensor(data.test_x), torch.as_tensor(data.test_y)
    for row in whole.client_metrics[-2:]:
        with torch.no_grad():
            correct = whole.model(row["client"])(x).argmax(1) == y
        assert row["final"] and correct.double().mean() == pytest.approx(row["test_accuracy"], abs=1e-12)
    with pytest.raises(FedalError, match="stopped after iteration 6"):
        package.run(config, "parts", callbacks=[StopAt(6)])
    package.resume("parts", trust=True)
    assert outcome(Path("parts")) == outcome(Path("whole"))


REFUSED = {
    "Attribute": "keeps state that changes in training outside its parameters and buffers (running). It would be lost",
    "Warming": "(steps). It would be lost in the exported model and on resume. Make it a buffer",
    "Hidden": "(not in an attribute of a module). It would be lost",
    "WithGraph": "a training step failed with RuntimeError",
    "Complex": "phase is torch.complex64; expected real numbers",
    "Extra": "_extra_state in its state_dict is a dict; fedal saves tensors only",
    "Parameterless": "has no parameters, so it cannot learn",
    "frozen": "all of its 2 parameters are frozen (requires_grad=False). Unfreeze at least its last layer.",
    "old_norm": "If it uses torch.nn.utils.weight_norm, use torch.nn.utils.parametrizations.weight_norm",
}


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_model_that_fedal_cannot_train_or_save_is_refused_by_name_before_anything_is_written(name: str) -> None:
    answer = fedal("run", "--clients", 2, "--rounds", 1, "--models", f"own_nets:{name}", "--out", "a")
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith(f'error: model "own_nets:{name} of client-00"') and REFUSED[name] in line
    assert not Path("a").exists()
    import own_nets  # type: ignore[import-not-found]

    model = getattr(own_nets, name)()
    with pytest.raises(ConfigError) as caught:
        package.run(package.Config(clients=2, rounds=1), "a", models={"client-01": model})
    assert f'model "<{type(model).__name__}> of client-01"' in str(caught.value)
    assert REFUSED[name] in str(caught.value)


@pytest.mark.usefixtures("nets")
def test_a_random_model_is_refused_as_random_and_not_for_hidden_state() -> None:
    answer = fedal("run", "--clients", 2, "--rounds", 1, "--models", "own_nets:Noisy", "--out", "a")
    assert answer.code == 2
    assert "draws from the global generator of torch" in answer.err


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_model_given_in_python_is_initialised_by_the_seed_and_stays_unchanged() -> None:
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    for out in ("a", "b"):
        torch.rand(3)  # the state of the global generator does not matter
        package.run(package.Config(**SETTINGS), out, models={"client-00": lazy})  # type: ignore[arg-type]
    assert outcome(Path("a")) == outcome(Path("b"))
    assert torch.nn.parameter.is_lazy(lazy[1].weight)
    assert json.loads(Path("a/environment.json").read_text())["clients"]["client-00"] == "<Sequential>"
