"""Dropout masks are functions of counters, and hidden randomness is detected before training."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal.errors import ConfigError
from fedal.learners.probe import refuse_hidden_randomness
from fedal.learners.torch_learner import TorchLearner, TorchSettings


class Bare(nn.Module):
    """Only dropout, with one weight to learn."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.layers(x)


def learner_of(*layers: nn.Module, owner: str = "a", seed: int = 0) -> TorchLearner:
    return TorchLearner(Bare(*layers), TorchSettings(lr=1e-9), seed=seed, owner=owner)


def mask(learner: TorchLearner, shape: tuple[int, ...] = (8, 100)) -> list[bool]:
    return (learner.logits(torch.ones(shape)) != 0).flatten().tolist()


def advance(learner: TorchLearner, shape: tuple[int, ...] = (8, 100)) -> None:
    learner.learn(torch.zeros(shape))


def test_masks_are_the_same_in_every_process_and_order() -> None:
    first, second = learner_of(nn.Dropout(0.5)), learner_of(nn.Dropout(0.5))
    torch.manual_seed(1)
    one = mask(first)
    torch.manual_seed(2)
    assert mask(second) == one


def test_masks_differ_between_steps_passes_clients_and_seeds() -> None:
    learner = learner_of(nn.Dropout(0.5))
    masks = [mask(learner), mask(learner)]  # two passes of one step
    learner.learn(torch.zeros(8, 100), torch.zeros(8, 100))
    masks.append(mask(learner))
    masks.append(mask(learner_of(nn.Dropout(0.5), owner="b")))
    masks.append(mask(learner_of(nn.Dropout(0.5), seed=1)))
    assert len(set(map(tuple, masks))) == len(masks)


def test_masks_differ_between_layers() -> None:
    kept = mask(learner_of(nn.Dropout(0.5), nn.Dropout(0.5)), (100, 100))
    assert 0.22 < np.mean(kept) < 0.28  # independent masks keep a quarter; the same mask twice would keep half


def test_a_layer_that_is_used_twice_drops_different_units() -> None:
    layer = nn.Dropout(0.5)
    kept = mask(learner_of(layer, layer), (100, 100))
    assert 0.22 < np.mean(kept) < 0.28


def test_a_step_can_be_repeated_after_a_restore() -> None:
    learner = learner_of(nn.Dropout(0.5))
    for _ in range(3):
        mask(learner)
        advance(learner)
    state, expected = learner.state_dict(), mask(learner)
    again = learner_of(nn.Dropout(0.5))
    again.load_state_dict(state)
    assert mask(again) == expected


def test_the_anchor_of_a_pass_drops_the_same_units_as_the_student() -> None:
    layer = nn.Dropout(0.5)
    learner = learner_of(layer, nn.Linear(100, 100), layer, nn.Dropout1d(0.3))
    anchor, x = learner.frozen(), torch.ones(8, 100)
    for _ in range(3):
        f = learner.logits(x)
        assert torch.equal(anchor(x), f)
        g = learner.logits(x)
        assert torch.equal(anchor(x), g) and not torch.equal(f, g)
        learner.forget()
        learner.logits(x)
        learner.learn(torch.zeros(8, 100))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_expected_output_is_the_input(p: float) -> None:
    learner = learner_of(nn.Dropout(p))
    out = learner.logits(torch.ones(400, 500))
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=0.005)
    assert out[kept].eq(out[kept][0]).all()


@pytest.mark.parametrize(("p", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_probabilities_zero_and_one_drop_nothing_and_everything(p: float, expected: float) -> None:
    assert learner_of(nn.Dropout(p)).logits(torch.ones(8, 100)).eq(expected).all()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout1d(0.5), (20, 30, 4)), (nn.Dropout2d(0.5), (20, 30, 4, 5)), (nn.Dropout3d(0.5), (20, 30, 2, 3, 4))],
)
def test_channelwise_dropout_drops_whole_channels(layer: nn.Module, shape: tuple[int, ...]) -> None:
    channels = learner_of(layer).logits(torch.ones(shape)).flatten(2)
    assert channels.eq(channels[..., :1]).all()
    assert (channels[..., 0] != 0).float().mean().item() == pytest.approx(0.5, abs=0.06)
    assert len({tuple(row.tolist()) for row in channels[..., 0]}) == 20  # a different mask per sample


def test_the_gradient_goes_where_the_units_were_kept() -> None:
    learner = TorchLearner(nn.Sequential(nn.Linear(5, 100, bias=False), nn.Dropout(0.5)), TorchSettings("sgd", lr=1.0))
    before = learner.weights()["0.weight"]
    f = learner.logits(torch.ones(1, 5))
    learner.learn(torch.ones(1, 100))
    moved = (learner.weights()["0.weight"] != before).any(1)
    assert moved.tolist() == (f[0] != 0).tolist()
    assert 0 < moved.sum() < 100


def test_evaluation_drops_nothing() -> None:
    learner = learner_of(nn.Dropout(0.5), nn.Dropout2d(0.5))
    x = torch.ones(4, 3, 2, 2)
    assert learner.predict(x).eq(1).all()
    assert learner.logits(x, "eval").eq(1).all()
    assert learner.frozen("eval")(x).eq(1).all()


def test_no_mask_comes_from_the_global_generator() -> None:
    learner = learner_of(nn.Dropout(0.5), nn.Dropout2d(0.3))
    before = torch.get_rng_state()
    learner.logits(torch.ones(4, 3, 2, 2))
    learner.frozen()(torch.ones(4, 3, 2, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_recomputation_inside_backward_is_refused_rather_than_given_another_mask() -> None:
    class Checkpointed(Bare):
        def forward(self, x: Tensor) -> Tensor:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(super().forward, x, use_reentrant=False)

    learner = TorchLearner(Checkpointed(nn.Dropout(0.5)))
    learner.logits(torch.ones(4, 3))
    with pytest.raises(RuntimeError, match="activation checkpointing"):
        learner.learn(torch.ones(4, 3))


# the probe


class Functional(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.dropout(x, 0.5, training=self.training)


class NumpyNoise(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + float(np.random.rand())  # noqa: NPY002


class PythonNoise(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + random.random()


@pytest.mark.parametrize(
    ("model", "generator"),
    [
        (Functional(), "torch"),
        (nn.Sequential(nn.Linear(3, 64), nn.RReLU()), "torch"),  # draws for negative units, which some of 64 are
        (nn.Sequential(nn.Linear(3, 3), nn.AlphaDropout(0.5)), "torch"),
        (NumpyNoise(), "numpy"),
        (PythonNoise(), "random"),
    ],
)
def test_a_model_that_draws_from_a_global_generator_is_refused(model: nn.Module, generator: str) -> None:
    with pytest.raises(ConfigError, match=f'model of client "a" draws from the global generator of {generator}'):
        refuse_hidden_randomness(TorchLearner(model), torch.ones(2, 3), "a")


def test_dropout_layers_pass_the_probe_which_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    probed, other = TorchLearner(model), TorchLearner(model)
    refuse_hidden_randomness(probed, torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), "a")
    x = torch.ones(4, 3)
    for learner in (probed, other):
        learner.logits(x)
        learner.learn(torch.ones(4, 3))
    for name, value in other.weights().items():
        assert torch.equal(probed.weights()[name], value)
