"""Rules that weigh, sharpen or filter the outputs of clients: hand cases, limits and symmetries."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fedal.aggregate import Rule, Space, combined, mean_over_clients
from fedal.weighting import CONFIDENCE, entropy, filtered_mean, mixture, shares_of, sharpened

HAND = torch.tensor([[[0.5, 0.3, 0.2]]], dtype=torch.float64)


def values(n_clients: int, space: Space = "probabilities", seed: int = 0) -> Tensor:
    f = 3 * torch.randn(n_clients, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return f if space == "logits" else torch.softmax(f, -1)


def probabilities(*rows: list[float]) -> Tensor:
    """One sample.  -> (N, 1, K)"""
    return torch.tensor(rows, dtype=torch.float64)[:, None]


# sharpening


@pytest.mark.parametrize(
    ("rule", "sharpness", "expected"),
    [
        ("era", 1.0, [0.391, 0.320, 0.289]),  # T = 1 flattens
        ("era", 10.0, [0.844, 0.114, 0.042]),
        ("era", None, [0.844, 0.114, 0.042]),
        ("era", 0.0, [1 / 3, 1 / 3, 1 / 3]),
        ("era", 1e4, [1.0, 0.0, 0.0]),
        ("power", 2.0, [0.658, 0.237, 0.105]),
        ("power", None, [0.658, 0.237, 0.105]),
        ("power", 0.0, [1 / 3, 1 / 3, 1 / 3]),
        ("power", 1.0, [0.5, 0.3, 0.2]),
    ],
)
def test_sharpening_a_hand_case(rule: Rule, sharpness: float | None, expected: list[float]) -> None:
    value = combined(HAND, rule, "probabilities", 0.2, sharpness)
    assert value[0].tolist() == pytest.approx(expected, abs=5e-4)


def test_a_mean_that_is_certain_saturates_below_one() -> None:
    certain = torch.eye(10, dtype=torch.float64)[:1]
    assert sharpened(certain, "era", 10.0, are_logits=False)[0, 0].item() == pytest.approx(0.99959, abs=1e-5)


@pytest.mark.parametrize("rule", ["era", "power"])
def test_sharpening_keeps_the_order_of_classes(rule: Any) -> None:
    p = values(3)
    for sharpness in (0.5, 2.0, 30.0):
        assert torch.equal(combined(p, rule, "probabilities", 0, sharpness).argmax(-1), p.mean(0).argmax(-1))


def test_power_one_is_the_mean_bit_for_bit_also_of_certain_clients() -> None:
    p = values(3)
    assert torch.equal(combined(p, "power", "probabilities", 0, 1.0), mean_over_clients(p))
    votes = torch.eye(5, dtype=torch.float64)[[0, 0, 1], None]
    assert combined(votes, "power", "probabilities", 0, 2.0)[0].tolist() == pytest.approx([0.8, 0.2, 0, 0, 0])


def test_sharpened_logits_have_the_same_law() -> None:
    f = values(3, "logits")
    p = torch.softmax(f.mean(0), -1)
    for rule, law in (("era", torch.softmax(10 * p, -1)), ("power", p.square() / p.square().sum(-1, keepdim=True))):
        torch.testing.assert_close(torch.softmax(combined(f, rule, "logits", 0), -1), law)  # type: ignore[arg-type]


# weights


def test_weights_of_a_hand_case() -> None:
    unsure, sure = [0.5, 0.5], [1.0, 0.0]
    p = probabilities(unsure, sure)
    assert entropy(p).flatten().tolist() == pytest.approx([0.6931472, 0.0])
    found = {rule: combined(p, rule, "probabilities", 0)[0, 0].item() for rule in CONFIDENCE}
    assert found["entropy"] == pytest.approx((0.5 * 0.5 + 1) / 1.5)  # exp(-log 2) = 1/2
    assert found["inverse-entropy"] == 1.0  # softmax of 1.44 and 1e6
    assert found["variance"] == pytest.approx(1.0)
    assert found["confidence"] == pytest.approx((0.5 * 0.5 + 1) / 1.5)


@pytest.mark.parametrize("space", get_args(Space))
def test_entropy_weights_without_sharpness_are_the_mean_bit_for_bit(space: Space) -> None:
    f = values(7, space)
    assert torch.equal(combined(f, "entropy", space, 0, 0.0), mean_over_clients(f))


@pytest.mark.parametrize("rule", CONFIDENCE)
def test_no_upload_makes_a_weight_infinite(rule: Rule) -> None:
    extreme = torch.tensor([[[1e6, -1e6, 0.0]], [[1e6, 1e6, -1e6]], [[0.0, 0.0, 0.0]]])
    assert combined(extreme, rule, "logits", 0).isfinite().all()
    assert combined(torch.softmax(extreme, -1), rule, "probabilities", 0).isfinite().all()
    assert combined(torch.zeros(3, 1, 3), rule, "logits", 0).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("n_clients", [1, 2, 3, 7, 49])
def test_equal_shares_give_the_mean_bit_for_bit(n_clients: int) -> None:
    for f in (values(n_clients).float(), values(n_clients)):
        for weights in (torch.ones(n_clients, 1, dtype=f.dtype), torch.zeros(n_clients, 4, dtype=f.dtype)):
            assert torch.equal(mixture(f, shares_of(weights)), mean_over_clients(f))


def test_shares_decide_per_sample() -> None:
    f = values(2, "logits")
    shares = torch.tensor([[1.0, 0.0, 0.25, 0.5], [0.0, 1.0, 0.75, 0.5]], dtype=torch.float64)
    expected = torch.stack([f[0, 0], f[1, 1], f[0, 2] / 4 + 3 * f[1, 2] / 4, f[:, 3].mean(0)])
    torch.testing.assert_close(mixture(f, shares), expected)


# the filter


def test_the_filter_returns_the_majority_of_certain_votes() -> None:
    """A power iteration that starts at the vector of ones would filter nothing here."""
    votes = probabilities(*[[1.0, 0.0]] * 12, *[[0.0, 1.0]] * 8)
    assert filtered_mean(votes, 0.499).tolist() == [[1.0, 0.0]]


def test_the_filter_keeps_as_many_as_the_authors() -> None:
    """100 clients on a line, 49 suspects: 75 pass the first time, 57 of them the second."""
    line = torch.linspace(0, 1, 100, dtype=torch.float64).square()
    rest = line[(line - line.mean()).abs().argsort()[:75]]
    rest = rest[(rest - rest.mean()).abs().argsort()[:57]]
    found = filtered_mean(torch.stack([line, -line], -1)[:, None], 0.499)
    assert found[0, 0].item() == pytest.approx(rest.mean().item(), abs=1e-12)


@pytest.mark.parametrize("space", get_args(Space))
def test_without_suspects_the_filter_is_the_mean_bit_for_bit(space: Space) -> None:
    for n_clients, trim in ((2, 0.499), (4, 0.2), (5, 0.0)):
        f = values(n_clients, space)
        assert torch.equal(combined(f, "cronus", space, trim), mean_over_clients(f))


def test_an_outlier_is_filtered() -> None:
    f = values(5, "logits")
    f[2] = 1e6 * torch.eye(5, dtype=torch.float64)[0]
    assert combined(f, "cronus", "logits", 0.499).abs().max() < 20


# symmetry


@pytest.mark.parametrize("space", get_args(Space))
@pytest.mark.parametrize("rule", get_args(Rule))
def test_a_permutation_of_classes_permutes_the_result(rule: Rule, space: Space) -> None:
    f, order = values(5, space), [3, 0, 4, 2, 1]
    expected = combined(f, rule, space, 0.25)[..., order]
    torch.testing.assert_close(combined(f[..., order], rule, space, 0.25), expected, rtol=0, atol=1e-6)
