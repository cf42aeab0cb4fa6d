"""TorchLearner: the step, the pending passes, BatchNorm, features and weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal.errors import ConfigError
from fedal.learners.torch_learner import TorchLearner
from fedal.losses import d_cross_entropy
from fedal.models.small import SmallMLP
from splits import conv_batch_norm, fingerprint, mlp, same_bits, with_dropout
from torch_learners import Tied, WithUnusedAndFrozenParts, batch, build, learner_of, train

# the step


@pytest.mark.parametrize("make", [mlp, conv_batch_norm, Tied, WithUnusedAndFrozenParts])
@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        ({}, lambda p: torch.optim.Adam(p, lr=0.01)),
        ({"weight_decay": 0.1}, lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
        ({"optimizer": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    ],
    ids=["adam", "adam with decay", "sgd with momentum"],
)
def test_learning_equals_plain_autograd_and_its_optimizer(
    make: Callable[[], nn.Module], settings: dict[str, Any], optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    learner, plain = learner_of(make, **settings), build(make).double()
    steps = optimizer([p for p in plain.parameters() if p.requires_grad])
    for step in range(4):
        x, y = batch(step)
        learner.learn(d_cross_entropy(learner.logits(x), y))
        steps.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(learner.weights()[name], value, rtol=0, atol=1e-12)


def test_learning_is_bit_for_bit_a_backward_from_the_same_gradient() -> None:
    learner, plain = learner_of(mlp), build(mlp).double()
    steps = torch.optim.Adam(plain.parameters(), lr=0.01, fused=True)
    for step in range(4):
        x, y = batch(step)
        f, g = learner.logits(x), plain(x)
        assert same_bits(f, g)
        learner.learn(d_cross_entropy(f, y))
        steps.zero_grad()
        g.backward(d_cross_entropy(g.detach(), y))
        steps.step()
    assert same_bits(learner.weights(), dict(plain.state_dict()))


def test_logits_carry_no_graph() -> None:
    f = learner_of().logits(batch()[0])
    assert not f.requires_grad and f.grad_fn is None


def test_learning_works_in_a_thread_with_gradients_disabled() -> None:
    learner = learner_of()
    before = fingerprint(learner.weights())
    with torch.no_grad():
        train(learner, range(1))
    assert fingerprint(learner.weights()) != before


def test_gradients_of_one_step_do_not_reach_the_next() -> None:
    """Two steps along g equal a fresh optimizer's two steps along g: gradients do not accumulate."""
    learner, plain = learner_of(optimizer="sgd", lr=1.0), build(mlp).double()
    x, _ = batch()
    g = torch.ones(8, 3, dtype=torch.float64)
    for _ in range(2):
        learner.logits(x)
        learner.learn(g)
        gradients = torch.autograd.grad(plain(x), list(plain.parameters()), g)
        with torch.no_grad():
            for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
                parameter -= gradient
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(learner.weights()[name], value, rtol=0, atol=1e-12)


def test_clipping_bounds_the_norm_of_the_whole_gradient() -> None:
    x, y = batch()
    moves = {}
    for clip in (0.0, 1e-3):
        learner = learner_of(optimizer="sgd", lr=1.0, clip=clip)
        before = learner.weights()
        learner.learn(d_cross_entropy(learner.logits(x), y))
        moves[clip] = torch.cat([(learner.weights()[name] - before[name]).flatten() for name in before])
    assert moves[0.0].norm() > 0.01
    assert moves[1e-3].norm() == pytest.approx(1e-3, rel=1e-3)
    assert F.cosine_similarity(moves[0.0], moves[1e-3], dim=0) == pytest.approx(1.0)


def test_the_callers_module_is_not_modified() -> None:
    model = build(conv_batch_norm).eval()
    before, methods = fingerprint(dict(model.state_dict())), [type(part) for part in model.modules()]
    learner = TorchLearner(model, dtype=torch.float64)
    train(learner, range(2))
    assert fingerprint(dict(model.state_dict())) == before
    assert [type(part) for part in model.modules()] == methods
    assert not model.training and next(model.parameters()).dtype == torch.float32
    dropped = build(with_dropout)
    TorchLearner(dropped)
    assert all("forward" not in vars(part) for part in dropped.modules())


# pending passes


def test_several_pending_passes_are_one_step_on_the_sum() -> None:
    learner, plain = learner_of(), build(mlp).double()
    steps = torch.optim.Adam(plain.parameters(), lr=0.01)
    (x1, y1), (x2, y2) = batch(1), batch(2, n=5)
    f1, f2 = learner.logits(x1), learner.logits(x2)
    learner.learn(d_cross_entropy(f1, y1), 3 * d_cross_entropy(f2, y2))
    (F.cross_entropy(plain(x1), y1) + 3 * F.cross_entropy(plain(x2), y2)).backward()
    steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(learner.weights()[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("passes", "gradients"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_a_wrong_number_of_gradients_is_an_error(passes: int, gradients: int) -> None:
    learner = learner_of()
    before = fingerprint(learner.weights())
    x, _ = batch()
    for _ in range(passes):
        learner.logits(x)
    with pytest.raises(ValueError, match=f"{gradients} gradients for {passes} pending passes"):
        learner.learn(*[torch.ones(8, 3, dtype=torch.float64)] * gradients)
    assert fingerprint(learner.weights()) == before


def test_a_forgotten_pass_leaves_no_trace() -> None:
    forgetful, other = learner_of(with_dropout), learner_of(with_dropout)
    forgetful.logits(batch(5)[0])
    forgetful.logits(batch(6)[0])
    forgetful.forget()
    train(forgetful, range(3))
    train(other, range(3))
    assert same_bits(forgetful.state_dict(), other.state_dict())


def test_predicting_while_a_pass_is_pending_has_no_side_effects() -> None:
    for make in (conv_batch_norm, with_dropout):
        quiet, asked = learner_of(make), learner_of(make)
        for learner in (quiet, asked):
            x, y = batch()
            f = learner.logits(x)
            if learner is asked:
                assert learner.predict(batch(9)[0]).shape == (8, 3)
                g = learner.logits(x)
                learner.predict(batch(7)[0])
            else:
                g = learner.logits(x)
            learner.learn(d_cross_entropy(f, y), d_cross_entropy(g, y))
            train(learner, range(2))
        assert same_bits(quiet.state_dict(), asked.state_dict())


def test_predictions_are_those_of_the_module_in_evaluation_mode() -> None:
    learner = learner_of(conv_batch_norm)
    train(learner, range(3))
    module = copy.deepcopy(learner.module).eval()
    x, _ = batch(4)
    prediction = learner.predict(x)
    assert same_bits(prediction, module(x)) and not prediction.requires_grad
    assert not torch.allclose(prediction, learner.logits(x))


# BatchNorm


def buffers(learner: TorchLearner) -> Any:
    return fingerprint(dict(learner.module.named_buffers()))


def test_only_train_mode_updates_the_running_averages() -> None:
    learner, x = learner_of(conv_batch_norm), batch(3)[0]
    train(learner, range(2))
    start = buffers(learner)
    for mode in ("frozen", "eval"):
        learner.logits(x, mode)
        assert buffers(learner) == start
    learner.logits(x, "train")
    assert buffers(learner) != start


def test_modes_differ_as_they_should() -> None:
    learner, x = learner_of(conv_batch_norm), batch(3)[0]
    train(learner, range(2))
    evaluated, frozen, trained = (learner.logits(x, mode) for mode in ("eval", "frozen", "train"))
    assert same_bits(frozen, trained)  # both use the statistics of the batch
    assert same_bits(evaluated, learner_predict_before_training_pass(x))
    assert not torch.allclose(evaluated, trained)


def learner_predict_before_training_pass(x: Tensor) -> Tensor:
    learner = learner_of(conv_batch_norm)
    train(learner, range(2))
    return learner.predict(x)


@pytest.mark.parametrize("modes", [("frozen",), ("eval",), ("eval", "train"), ("frozen", "train"), ("eval", "frozen")])
def test_every_mix_of_modes_learns_from_the_gradients_of_its_passes(modes: tuple[str, ...]) -> None:
    """Backward reads BatchNorm's running averages again: a later pass must not change those of an earlier one."""
    learner = learner_of(conv_batch_norm, optimizer="sgd", lr=1.0)
    train(learner, range(1))
    before = learner.weights()
    expected = {name: torch.zeros_like(value) for name, value in learner.module.named_parameters()}
    passes = [batch(10 + index) for index in range(len(modes))]
    for mode, (x, y) in zip(modes, passes, strict=True):
        alone = copy.deepcopy(learner.module).train(mode != "eval")
        F.cross_entropy(alone(x), y).backward()
        for name, parameter in alone.named_parameters():
            expected[name] += parameter.grad
    logits = [learner.logits(x, mode) for mode, (x, _) in zip(modes, passes, strict=True)]
    learner.learn(*[d_cross_entropy(f, y) for f, (_, y) in zip(logits, passes, strict=True)])
    for name, gradient in expected.items():
        torch.testing.assert_close(before[name] - learner.weights()[name], gradient, rtol=0, atol=1e-12)


def test_the_number_of_evaluations_does_not_matter() -> None:
    """A part that its author left in evaluation mode must not change its mode at the first evaluation."""

    def half_asleep() -> nn.Module:
        model = conv_batch_norm()
        model[1].eval()
        return model

    never, often = learner_of(half_asleep), learner_of(half_asleep)
    for step in range(3):
        train(never, range(step, step + 1))
        train(often, range(step, step + 1))
        often.predict(batch(9)[0])
        often.frozen()(batch(9)[0])
    assert same_bits(never.state_dict(), often.state_dict())


# features and weights


def features_learner() -> TorchLearner:
    return learner_of(lambda: SmallMLP((1, 4, 4), 3))


def test_features_are_the_vector_before_the_last_layer() -> None:
    learner, x = features_learner(), batch()[0]
    f, features = learner.logits_and_features(x)
    assert features.shape == (8, learner.feature_width) and not features.requires_grad
    assert same_bits(learner.module.head(features), f)


def test_gradients_of_features_and_logits_are_learned_together() -> None:
    learner, plain = features_learner(), build(lambda: SmallMLP((1, 4, 4), 3)).double()
    steps = torch.optim.Adam(plain.parameters(), lr=0.01)
    x, y = batch()
    target = torch.ones(8, learner.feature_width, dtype=torch.float64)
    f, features = learner.logits_and_features(x)
    learner.learn(d_cross_entropy(f, y), dfeatures=features - target)
    hidden = plain.features(x)
    (F.cross_entropy(plain.classify(hidden), y) + 0.5 * (hidden - target).square().sum()).backward()
    steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(learner.weights()[name], value, rtol=0, atol=1e-12)


def test_a_pass_may_have_only_a_gradient_of_its_features() -> None:
    with_none, with_zeros, x = features_learner(), features_learner(), batch()[0]
    head = fingerprint(with_none.module.head.weight)
    for learner, dlogits in ((with_none, None), (with_zeros, torch.zeros(8, 3, dtype=torch.float64))):
        _, features = learner.logits_and_features(x)
        learner.learn(dlogits, dfeatures=features)
    for name, value in with_zeros.weights().items():
        torch.testing.assert_close(with_none.weights()[name], value, rtol=0, atol=1e-15)
    assert fingerprint(with_none.module.head.weight) == head  # no gradient, no step


def test_a_feature_gradient_without_a_pass_with_features_is_an_error() -> None:
    learner = features_learner()
    f = learner.logits(batch()[0])
    with pytest.raises(ValueError, match="needs a pending pass of logits_and_features"):
        learner.learn(f, dfeatures=torch.ones(8, 64, dtype=torch.float64))


def test_a_model_without_features_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Sequential has no features"):
        learner_of(mlp).logits_and_features(batch()[0])
    with pytest.raises(ConfigError, match="choose a method that needs outputs only"):
        _ = learner_of(mlp).feature_width


def test_weights_are_copies_and_loading_them_keeps_the_optimizer() -> None:
    learner = learner_of(conv_batch_norm)
    train(learner, range(2))
    weights, moments = learner.weights(), fingerprint(learner.state_dict()["optimizer"])
    expected = fingerprint(weights)
    train(learner, range(2))
    assert fingerprint(weights) == expected
    learner.load_weights(weights)
    assert fingerprint(learner.weights()) == expected
    assert fingerprint(learner.state_dict()["optimizer"]) != moments
    learner.load_weights({name: torch.zeros_like(value) for name, value in weights.items()})
    assert fingerprint(weights) == expected


def test_a_reset_optimizer_steps_like_a_new_one() -> None:
    used, fresh = learner_of(mlp), learner_of(mlp)
    train(used, range(3))
    used.load_weights(fresh.weights())
    used.reset_optimizer()
    for learner in (used, fresh):
        train(learner, range(2))
    assert same_bits(used.weights(), fresh.weights())


def test_layers_compute_in_bf16_but_weights_and_outputs_do_not() -> None:
    x, y = batch(dtype=torch.float32)
    coarse, fine = (learner_of(conv_batch_norm, torch.float32, bf16=bf16) for bf16 in (True, False))
    for learner in (coarse, fine):
        learner.learn(d_cross_entropy(learner.logits(x), y))
    outputs, expected = coarse.predict(x), fine.predict(x)
    assert outputs.dtype is torch.float32 and not torch.equal(outputs, expected)
    torch.testing.assert_close(outputs, expected, rtol=0.05, atol=0.05)
    assert torch.equal(coarse.frozen("eval")(x), outputs)
    kept = [*coarse.weights().values(), *coarse.state_dict()["optimizer"]["0"].values()]
    assert all(value.dtype is torch.float32 for value in kept if value.is_floating_point())
