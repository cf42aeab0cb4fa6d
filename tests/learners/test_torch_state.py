"""Anchors and state of a torch learner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedal.learners.torch_learner import TorchLearner
from fedal.losses import d_cross_entropy
from fedal.records.checkpoint import load_newest, save_checkpoint
from splits import conv_batch_norm, fingerprint, mlp, same_bits, with_dropout
from torch_learners import Tied, WithUnusedAndFrozenParts, batch, build, learner_of, train

# anchors


@pytest.mark.parametrize("make", [mlp, conv_batch_norm, with_dropout, Tied])
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_anchor_matches_the_student_bit_for_bit_until_it_learns(
    make: Callable[[], nn.Module], mode: Any, dtype: torch.dtype
) -> None:
    learner = learner_of(make, dtype)
    train(learner, range(3), dtype)
    anchor, x = learner.frozen(mode), batch(7, dtype=dtype)[0]
    f = learner.logits(x, mode)
    assert same_bits(anchor(x), f)
    assert same_bits(anchor(x), f)  # and again: nothing in it changed


@pytest.mark.parametrize("make", [conv_batch_norm, with_dropout])
def test_neither_its_use_nor_later_learning_changes_an_anchor(make: Callable[[], nn.Module]) -> None:
    learner = learner_of(make)
    train(learner, range(2))
    anchor = learner.frozen()
    state, weights = fingerprint(anchor.state_dict()), fingerprint(learner.weights())
    for seed in range(3):
        anchor(batch(seed)[0])
    assert fingerprint(anchor.state_dict()) == state == weights
    train(learner, range(3))
    assert fingerprint(anchor.state_dict()) == state != fingerprint(learner.weights())


def test_an_anchor_does_not_change_its_learner() -> None:
    with_anchor, without = learner_of(conv_batch_norm), learner_of(conv_batch_norm)
    for step in range(3):
        anchor = with_anchor.frozen()
        for learner in (with_anchor, without):
            x, y = batch(step)
            f = learner.logits(x)
            if learner is with_anchor:
                anchor(x)
            learner.learn(d_cross_entropy(f, y))
    assert same_bits(with_anchor.state_dict(), without.state_dict())


def test_two_live_anchors_never_share_a_module() -> None:
    learner, x = learner_of(conv_batch_norm), batch(9)[0]
    anchors, answers = [], []
    for step in range(3):
        train(learner, range(step, step + 1))
        anchors.append(learner.frozen())
        answers.append(fingerprint(anchors[-1](x)))
    del anchors[0], answers[0]  # its module may be reused, those of live anchors may not
    for step in range(3, 6):
        train(learner, range(step, step + 1))
        anchors.append(learner.frozen())
        answers.append(fingerprint(anchors[-1](x)))
    assert [fingerprint(anchor(x)) for anchor in anchors] == answers
    assert len(set(map(str, answers))) == len(answers)


def test_successive_anchors_reuse_one_module() -> None:
    learner = learner_of(mlp)
    for step in range(5):
        train(learner, range(step, step + 1))
        anchor = learner.frozen()
        assert same_bits(anchor.state_dict(), learner.weights())
        del anchor
    assert len(learner._spares) == 1


def test_the_state_of_an_anchor_outlives_it() -> None:
    learner = learner_of(mlp)
    anchor = learner.frozen()
    state = anchor.state_dict()
    expected = fingerprint(state)
    del anchor
    train(learner, range(1))
    following = learner.frozen()
    assert fingerprint(state) == expected
    following.load_state_dict(state)
    assert fingerprint(following.state_dict()) == expected


def test_an_anchor_can_be_made_while_a_pass_is_pending() -> None:
    learner, other = learner_of(conv_batch_norm), learner_of(conv_batch_norm)
    x, y = batch()
    f = learner.logits(x)
    learner.frozen()(x)
    learner.learn(d_cross_entropy(f, y))
    train(other, range(1))
    assert same_bits(learner.weights(), other.weights())


# state


@pytest.mark.parametrize("make", [mlp, conv_batch_norm, with_dropout, Tied, WithUnusedAndFrozenParts])
@pytest.mark.parametrize(
    "settings",
    [{}, {"fused": False}, {"channels_last": False}, {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9}],
    ids=["adam", "unfused", "contiguous", "sgd", "momentum"],
)
@pytest.mark.parametrize("done", [0, 3])
def test_a_restored_learner_continues_bit_for_bit(
    make: Callable[[], nn.Module], settings: dict[str, Any], done: int, tmp_path: Path
) -> None:
    learner = learner_of(make, torch.float32, **settings)
    train(learner, range(done), torch.float32)
    save_checkpoint(tmp_path, 1, learner.state_dict())
    restored = TorchLearner(build(make, seed=1), learner.settings)
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    restored.load_state_dict(found[1])
    for each in (learner, restored):
        train(each, range(done, done + 3), torch.float32)
    assert same_bits(learner.state_dict(), restored.state_dict())


def test_restored_moments_have_the_memory_format_of_their_parameters() -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 2), nn.Flatten(), nn.Linear(6, 3))

    learner, restored = learner_of(wide, torch.float32), learner_of(wide, torch.float32)
    train(learner, range(2), torch.float32)
    state = learner.state_dict()
    state["optimizer"] = {
        index: {name: value.clone(memory_format=torch.contiguous_format) for name, value in slots.items()}
        for index, slots in state["optimizer"].items()
    }  # as they are read from a file
    restored.load_state_dict(state)
    weight = restored.module[1].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert restored._optimizer.state[weight]["exp_avg"].stride() == weight.stride()
    for each in (learner, restored):
        train(each, range(2, 5), torch.float32)
    assert same_bits(learner.state_dict(), restored.state_dict())


def test_a_state_is_a_snapshot() -> None:
    learner = learner_of(conv_batch_norm)
    train(learner, range(2))
    state = learner.state_dict()
    expected = fingerprint(state)
    train(learner, range(2, 4))
    assert fingerprint(state) == expected
    learner.load_state_dict(state)
    assert fingerprint(learner.state_dict()) == expected


def test_loading_a_state_drops_pending_passes() -> None:
    learner = learner_of(mlp)
    state = learner.state_dict()
    learner.logits(batch()[0])
    learner.load_state_dict(state)
    with pytest.raises(ValueError, match="0 pending passes"):
        learner.learn(torch.ones(8, 3, dtype=torch.float64))
