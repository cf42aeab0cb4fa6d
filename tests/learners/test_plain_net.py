"""A plain net has the bits that autograd has, in every verb of a learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedal.learners.plain_net import PlainNet
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.models.classifier import Classifier
from fedal.models.small import SmallMLP, cnn_small

SHAPES = [(32, 64, 64, 10), (1, 5, 3, 2), (7, 13, 33, 1), (2, 1, 17, 11)]  # batch, inputs, features, classes


def classifier(inputs: int, width: int, n_classes: int) -> Classifier:
    torch.manual_seed(inputs)
    body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 24, bias=False), nn.ReLU(), nn.Linear(24, width), nn.ReLU())
    return Classifier(body, nn.Linear(width, n_classes), feature_width=width)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[TorchLearner, TorchLearner]]:
    """Two learners of one model: a plain net, and the same by autograd."""

    def make(model: nn.Module, **more: object) -> tuple[TorchLearner, TorchLearner]:
        plain = TorchLearner(model, TorchSettings(lr=0.1), **more)  # type: ignore[arg-type]
        assert plain._plain is not None
        with monkeypatch.context() as patch:
            patch.setattr(PlainNet, "of", lambda module: None)
            return plain, TorchLearner(model, TorchSettings(lr=0.1), **more)  # type: ignore[arg-type]

    return make


def same(one: TorchLearner, other: TorchLearner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.weights().values(), other.weights().values(), strict=True))


class Batch(NamedTuple):
    xs: list[Tensor]  # three of (B, inputs)
    dfs: list[Tensor]  # three of (B, K)
    h: Tensor  # (B, d)
    d_h: Tensor


def three_passes(learner: TorchLearner, batch: Batch) -> list[Tensor]:
    outputs = [learner.logits(x) for x in batch.xs]
    learner.learn(*batch.dfs)
    return outputs


def features(learner: TorchLearner, batch: Batch) -> list[Tensor]:
    outputs = [*learner.logits_and_features(batch.xs[0]), learner.logits_of_features(batch.h)]
    learner.learn(batch.dfs[0], batch.dfs[1], dfeatures=batch.d_h)
    return outputs


def features_alone(learner: TorchLearner, batch: Batch) -> list[Tensor]:
    outputs = [*learner.logits_and_features(batch.xs[0])]
    learner.learn(None, dfeatures=batch.d_h)
    return outputs


def through(learner: TorchLearner, batch: Batch) -> list[Tensor]:
    (f, back), (g, back_to_features) = learner.through(batch.xs[1]), learner.through(batch.h, at="features")
    past = learner.frozen("eval")
    k, back_through_past = past.through(batch.xs[2])
    d_f, d_g, d_k = batch.dfs
    return [f, back(d_f), g, back_to_features(d_g), k, back_through_past(d_k), past(batch.xs[0])]


def weight_gradient(learner: TorchLearner, batch: Batch) -> list[Tensor]:
    learner.logits(batch.xs[0])
    learner.logits_of_features(batch.h)
    whole = learner.weight_gradient(batch.dfs[0], batch.dfs[1])
    learner.logits_of_features(batch.h)
    of_the_head = learner.weight_gradient(batch.dfs[2])
    assert not any(of_the_head["body.1.weight"].flatten())
    assert all(parameter.grad is None for parameter in learner.parameters)
    return [*whole.values(), *of_the_head.values(), learner.predict(batch.xs[1])]


@pytest.mark.parametrize("verb", [three_passes, features, features_alone, through, weight_gradient])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_verb_has_the_bits_of_autograd(
    pair: Callable[..., tuple[TorchLearner, TorchLearner]], shape: tuple[int, ...], dtype: torch.dtype, verb: Any
) -> None:
    size, inputs, width, n_classes = shape
    learners = pair(classifier(inputs, width, n_classes), dtype=dtype)
    for _ in range(3):
        drawn = [torch.randn(size, each, dtype=dtype) for each in (*[inputs] * 3, *[n_classes] * 3, width, width)]
        one, other = (verb(learner, Batch(drawn[:3], drawn[3:6], *drawn[6:])) for learner in learners)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)) and same(*learners)


def test_images_get_a_gradient_of_their_shape(pair: Callable[..., tuple[TorchLearner, ...]]) -> None:
    images, gradient = torch.randn(4, 1, 8, 8), torch.randn(4, 10)
    one, other = (learner.through(images)[1](gradient) for learner in pair(SmallMLP((1, 8, 8), 10)))
    assert one.shape == images.shape and torch.equal(one, other)


def test_a_learner_leaves_the_inputs_alone(pair: Callable[..., tuple[TorchLearner, ...]]) -> None:
    plain, reference = pair(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    x, before = -torch.ones(2, 3), -torch.ones(2, 3)
    assert torch.equal(plain.logits(x), reference.logits(x)) and torch.equal(x, before)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(16, 2)),  # the first layer sees images
        nn.Sequential(Doubled(4, 2)),
        cnn_small((1, 8, 8), 10),
    ],
    ids=["dropout", "norm", "tanh", "flatten", "subclass", "convolution"],
)
def test_other_models_are_left_to_autograd(model: nn.Module) -> None:
    assert PlainNet.of(model) is None


def test_frozen_parameters_hooks_and_bf16_are_left_to_autograd() -> None:
    partly = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    partly[0].weight.requires_grad_(False)
    hooked = nn.Sequential(nn.Linear(4, 2))
    hooked[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert PlainNet.of(partly) is None and PlainNet.of(hooked) is None
    assert TorchLearner(nn.Linear(4, 2), TorchSettings(bf16=True))._plain is None
    assert TorchLearner(nn.Linear(4, 2))._plain is not None
