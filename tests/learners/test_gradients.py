"""Gradients that no optimizer step asks for: w.r.t. inputs, features and weights, against autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedal.errors import NotApplicableError
from fedal.losses import d_cross_entropy
from fedal.methods import get
from fedal.simulate.checks import refuse_misfits
from splits import conv_batch_norm, fingerprint, with_dropout, with_features
from torch_learners import batch, learner_of, train


@pytest.mark.parametrize("make", [with_features, conv_batch_norm, with_dropout])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_goes_through_a_model_to_its_inputs_and_changes_nothing(make: Any, frozen: bool) -> None:
    learner = learner_of(make)
    train(learner, range(2))
    before = fingerprint(learner.state_dict())
    x, y = batch(5)
    f, back = (learner.frozen("eval") if frozen else learner).through(x)  # type: ignore[attr-defined]
    inputs = x.clone().requires_grad_()
    module = learner.module.eval()
    F.cross_entropy(module(inputs), y).backward()
    module.train()
    torch.testing.assert_close(back(d_cross_entropy(f, y)), inputs.grad)
    torch.testing.assert_close(f, learner.predict(x))
    assert fingerprint(learner.state_dict()) == before
    learner.learn(d_cross_entropy(learner.logits(x), y))  # no pass of `through` is pending


def test_a_gradient_goes_through_the_last_layer_to_the_features() -> None:
    learner = learner_of(with_features)
    h = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    f, back = learner.through(h, at="features")
    weight = learner.weights()["head.weight"]
    torch.testing.assert_close(back(torch.ones_like(f)), weight.sum(0).expand(8, 5))


def test_the_last_layer_learns_from_given_features() -> None:
    learner = learner_of(with_features)
    before = learner.weights()
    h, y = torch.ones(8, 5, dtype=torch.float64), torch.zeros(8, dtype=torch.long)
    learner.learn(d_cross_entropy(learner.logits_of_features(h), y))
    changed = {name for name, value in learner.weights().items() if not torch.equal(value, before[name])}
    assert changed == {"head.weight", "head.bias"}


def test_a_step_along_its_own_gradient_is_the_step_of_learn() -> None:
    one, other = learner_of(with_features), learner_of(with_features)
    for step in range(3):
        x, y = batch(step)
        one.learn(d_cross_entropy(one.logits(x), y))
        gradient = other.weight_gradient(d_cross_entropy(other.logits(x), y))
        assert gradient.keys() == other.trainable().keys()
        other.learn(dweights=gradient)
    assert fingerprint(one.state_dict()) == fingerprint(other.state_dict())


def test_gradients_w_r_t_logits_and_weights_add_up() -> None:
    learner = learner_of(with_features, optimizer="sgd", lr=1.0)
    before, (x, y) = learner.weights(), batch()
    gradient = learner.weight_gradient(d_cross_entropy(learner.logits(x), y))
    learner.learn(d_cross_entropy(learner.logits(x), y), dweights=gradient)
    for name, value in learner.weights().items():
        torch.testing.assert_close(value, before[name] - 2 * gradient[name])


def test_squared_gradients_are_those_of_single_samples() -> None:
    learner = learner_of(with_features)
    x, y = batch()
    f = learner.predict(x)
    found = learner.squared_gradients(x, len(f) * d_cross_entropy(f, y))
    module = learner.module.eval()
    for name, parameter in module.named_parameters():
        each = [
            torch.autograd.grad(F.cross_entropy(module(x[i : i + 1]), y[i : i + 1]), parameter)[0] for i in range(8)
        ]
        torch.testing.assert_close(found[name], torch.stack(each).square().mean(0))
        assert not torch.allclose(found[name], torch.stack(each).mean(0).square()), "not the square of the mean"


@pytest.mark.parametrize(
    ("method", "missing", "need"),
    [("fedreg", "through", "input-gradients"), ("fedcurv", "weight_gradient", "weight-gradients")],
)
def test_a_learner_without_a_gradient_that_a_method_needs_is_refused(method: str, missing: str, need: str) -> None:
    class Less:
        def __getattr__(self, name: str) -> Any:
            if name == missing:
                raise AttributeError(name)
            return None

    with pytest.raises(NotApplicableError, match=f'{method} needs {need}; the learner of client "a" exposes none'):
        refuse_misfits(get(method), {"a": Less()}, {"a": "less"})  # type: ignore[dict-item]
