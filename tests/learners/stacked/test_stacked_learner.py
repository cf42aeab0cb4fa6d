"""Several learners as one: the same values as separately, and members that remain complete learners."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedal.learners.stacked.learner import StackedLearner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import d_cross_entropy, d_kl
from fedal.models import build
from fedal.seeding import torch_seeded

G, B, K = 3, 8, 4
SHAPES = {"lenet5": (2, 28, 28), "cnn-small": (3, 10, 10), "mlp-small": (7,)}  # 10 -> 5 -> 3: odd sides too


def learners(model: str, dtype: torch.dtype = torch.float64) -> list[TorchLearner]:
    with torch_seeded(0, "stack"):
        return [
            TorchLearner(build(model, SHAPES[model], K), TorchSettings(weight_decay=0.01), dtype=dtype)
            for _ in range(G)
        ]


def private(model: str, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(G, B, *SHAPES[model], dtype=torch.float64, generator=generator)
    return x, torch.randint(0, K, (G, B), generator=generator)


def public(model: str, step: int) -> Tensor:
    return private(model, 1000 + step)[0][0]


def largest_difference(some: list[TorchLearner], others: list[TorchLearner]) -> float:
    pairs = zip(some, others, strict=True)
    return max(float((a.weights()[name] - b.weights()[name]).abs().max()) for a, b in pairs for name in a.weights())


@pytest.mark.parametrize("model", SHAPES)
def test_a_stack_learns_what_its_members_learn_alone(model: str) -> None:
    members, alone = learners(model), learners(model)
    stack = StackedLearner(members, len(SHAPES[model]))
    before = [member.weights() for member in members]
    for step in range(4):
        (x, y), shared = private(model, step), public(model, step)
        anchor, anchors = stack.frozen(), [learner.frozen() for learner in alone]
        f = stack.logits(x)
        stack.learn(d_cross_entropy(f, y))
        f = stack.logits(shared)
        assert f.shape == (G, B, K)
        stack.learn(d_kl(anchor(shared), f))
        for g, learner in enumerate(alone):
            learner.learn(d_cross_entropy(learner.logits(x[g]), y[g]))
            own = learner.logits(shared)
            assert torch.allclose(own, f[g], rtol=0, atol=1e-12)
            learner.learn(d_kl(anchors[g](shared), own))
    assert largest_difference(members, alone) < 1e-12
    for was, member in zip(before, members, strict=True):
        assert all(not torch.equal(value, member.weights()[name]) for name, value in was.items())


@pytest.mark.parametrize("model", SHAPES)
def test_a_member_has_the_stacks_weights(model: str) -> None:
    members = learners(model)
    stack = StackedLearner(members, len(SHAPES[model]))
    x, y = private(model, 0)
    stack.learn(d_cross_entropy(stack.logits(x), y))
    together = stack.predict(public(model, 0))
    for g, member in enumerate(members):
        assert torch.allclose(member.predict(public(model, 0)), together[g], rtol=0, atol=1e-12)


def test_a_members_state_has_the_format_of_a_single_learner() -> None:
    members, alone = learners("lenet5"), learners("lenet5")
    stack = StackedLearner(members, 3)
    x, y = private("lenet5", 0)
    stack.learn(d_cross_entropy(stack.logits(x), y))
    alone[1].learn(d_cross_entropy(alone[1].logits(x[1]), y[1]))
    ours, theirs = members[1].state_dict(), alone[1].state_dict()
    assert ours["step"] == theirs["step"] == 1
    assert ours["optimizer"].keys() == theirs["optimizer"].keys()
    for index, slots in theirs["optimizer"].items():
        for name, value in slots.items():
            assert torch.allclose(ours["optimizer"][index][name], value, rtol=0, atol=1e-12), (index, name)


def test_a_restored_stack_continues_bit_for_bit() -> None:
    members = learners("lenet5", torch.float64)
    stack = StackedLearner(members, 3)

    def step(to: StackedLearner, number: int) -> None:
        x, y = private("lenet5", number)
        to.learn(d_cross_entropy(to.logits(x), y))

    step(stack, 0)
    saved = stack.state_dict()
    step(stack, 1)
    other_members = learners("lenet5")
    other = StackedLearner(other_members, 3)
    step(other, 5)  # an independent history, which must leave no trace
    other.load_state_dict(saved)
    step(other, 1)
    assert largest_difference(members, other_members) == 0
    fresh = StackedLearner(learners("lenet5"), 3)
    other.load_state_dict(fresh.state_dict())  # back to before the first step
    step(other, 0)
    step(other, 1)
    assert largest_difference(members, other_members) == 0


def test_an_anchor_does_not_change_with_the_stack_and_its_net_is_reused() -> None:
    stack = StackedLearner(learners("mlp-small"), 1)
    x, y = private("mlp-small", 0)
    anchor = stack.frozen()
    before = anchor(x)
    assert torch.equal(before, stack.predict(x))
    stack.learn(d_cross_entropy(stack.logits(x), y))
    assert torch.equal(anchor(x), before)
    saved = anchor.state_dict()
    del anchor
    again = stack.frozen()
    assert torch.equal(again(x), stack.predict(x))
    again.load_state_dict(saved)
    assert torch.equal(again(x), before)


def test_forgotten_passes_teach_nothing() -> None:
    stack = StackedLearner(learners("mlp-small"), 1)
    x, y = private("mlp-small", 0)
    stack.logits(x)
    stack.forget()
    f = stack.logits(x)
    with pytest.raises(ValueError, match="2 gradients for 1 pending"):
        stack.learn(f, f)
    stack.learn(d_cross_entropy(f, y))
