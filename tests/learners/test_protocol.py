"""The learner protocol behaves the same in every framework."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedal.learners.base import VERBS, Learner
from fedal.losses import d_cross_entropy
from fedal.records.checkpoint import load_newest, save_checkpoint
from frameworks import FRAMEWORKS, Make, batch, train
from optional import needs
from splits import same_bits, synthetic_images


def xgboost_by_batch(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    """One step per batch; by default boosted trees learn at the end of a stage (test_boosted.py)."""
    needs("xgboost", "xgboost")
    from fedal.learners.xgboost_learner import XGBoostLearner

    return XGBoostLearner(n_features=n_features, n_classes=n_classes, min_child_weight=0.1, l2=0.1, per="batch")


LEARNERS: dict[str, Make] = {**FRAMEWORKS, "xgboost by batch": xgboost_by_batch}
pytestmark = pytest.mark.parametrize("make", LEARNERS.values(), ids=list(LEARNERS))


def test_a_step_changes_the_outputs_along_the_negative_gradient(make: Make) -> None:
    learner = train(make(), range(2))
    for number in range(2, 5):
        x, y = batch(number)
        f = learner.logits(x)
        gradient = d_cross_entropy(f, y)
        learner.learn(gradient)
        assert ((learner.predict(x) - f) * gradient).sum() < 0


def test_a_step_for_two_passes_changes_the_outputs_of_both(make: Make) -> None:
    learner, (x, y), (z, w) = make(), batch(0), batch(1)
    f, g = learner.logits(x), learner.logits(z)
    gradients = d_cross_entropy(f, y), d_cross_entropy(g, w)
    learner.learn(*gradients)
    for inputs, before, gradient in ((x, f, gradients[0]), (z, g, gradients[1])):
        assert ((learner.predict(inputs) - before) * gradient).sum() < 0


def test_two_passes_over_half_batches_equal_one_over_the_whole(make: Make) -> None:
    whole, halves, (x, y) = make(), make(), batch()
    whole.learn(d_cross_entropy(whole.logits(x), y))
    f, g = halves.logits(x[:4]), halves.logits(x[4:])
    halves.learn(d_cross_entropy(f, y[:4]) / 2, d_cross_entropy(g, y[4:]) / 2)
    torch.testing.assert_close(halves.predict(x), whole.predict(x), rtol=0, atol=1e-4)


def test_a_learner_learns(make: Make) -> None:
    learner = make()
    for _ in range(6):
        train(learner, range(15))
    x, y = (torch.from_numpy(part) for part in synthetic_images())
    assert (learner.predict(x[120:]).argmax(-1) == y[120:]).float().mean() > 0.75


def test_a_wrong_number_of_gradients_is_refused_and_changes_nothing(make: Make) -> None:
    learner, (x, y) = make(), batch()
    gradient = d_cross_entropy(learner.predict(x), y)
    with pytest.raises(ValueError, match="1 gradients for 0 pending"):
        learner.learn(gradient)
    before = learner.predict(x)
    learner.logits(x)
    learner.logits(x)
    with pytest.raises(ValueError, match="1 gradients for 2 pending"):
        learner.learn(gradient)
    assert same_bits(learner.predict(x), before)
    learner.learn(gradient, gradient)  # both are still pending
    with pytest.raises(ValueError, match="1 gradients for 0 pending"):
        learner.learn(gradient)


def test_a_forgotten_pass_is_not_pending_and_leaves_no_trace(make: Make) -> None:
    learner, other = make(), make()
    learner.logits(batch(3)[0])
    learner.forget()
    assert same_bits(train(learner, range(2)).state_dict(), train(other, range(2)).state_dict())


def test_predicting_while_a_pass_is_pending_changes_nothing(make: Make) -> None:
    learner, other, (x, y) = make(), make(), batch()
    f = learner.logits(x)
    learner.predict(batch(1)[0])
    learner.frozen()(batch(2)[0])
    learner.learn(d_cross_entropy(f, y))
    other.learn(d_cross_entropy(other.logits(x), y))
    assert same_bits(learner.state_dict(), other.state_dict())


def test_logits_are_detached_and_agree_with_predictions(make: Make) -> None:
    learner, (x, _) = train(make(), range(3)), batch(4)
    f = learner.logits(x)
    assert f.shape == (8, 3) and f.dtype == x.dtype and not f.requires_grad
    assert same_bits(learner.predict(x), f)


def test_an_anchor_does_not_change_while_the_learner_does(make: Make) -> None:
    learner, (x, _) = train(make(), range(2)), batch(9)
    anchor, before = learner.frozen(), learner.predict(x)
    assert same_bits(anchor(x), before)
    train(learner, range(2, 6))
    assert same_bits(anchor(x), before)
    assert not same_bits(learner.predict(x), before)


def test_an_anchor_can_be_saved_and_loaded_into_another(make: Make) -> None:
    learner, (x, _) = train(make(), range(3)), batch(9)
    anchor, other = learner.frozen(), make().frozen()
    other.load_state_dict(anchor.state_dict())
    assert same_bits(other(x), anchor(x))


def test_a_restored_learner_continues_as_if_uninterrupted(make: Make, tmp_path: Path) -> None:
    """States go through files, as arrays and JSON; loading drops pending passes."""
    learner, other = train(make(), range(4)), train(make(), range(1))
    state = learner.state_dict()
    save_checkpoint(tmp_path, 1, {"learner": state})
    train(learner, range(4, 8))
    restored = load_newest(tmp_path, warn=lambda text: None)
    assert restored is not None
    other.logits(batch()[0])
    other.load_state_dict(restored[1]["learner"])
    assert same_bits(other.state_dict(), state), "a state is a snapshot"
    assert same_bits(train(other, range(4, 8)).state_dict(), learner.state_dict())


def test_the_trained_arrays_are_under_model(make: Make) -> None:
    model = train(make(), range(1)).state_dict()["model"]
    assert model and all(isinstance(value, Tensor) for value in model.values())


def test_every_verb_is_implemented(make: Make) -> None:
    learner = make()
    assert all(callable(getattr(learner, verb)) for verb in VERBS)
