"""KT-pFL and ExpGuard: coefficients and weights that the server learns about its clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedal.engine.loop import Federation
from fedal.messages import Outputs
from fedal.methods.outputs.kt_pfl import gradient, stepped
from plain_rounds import TRIO, Logits, check_against_plain, soft_divergence
from splits import build_federation, mlp, run_rounds


def outputs(n_clients: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n_clients, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uploads(f: Tensor) -> dict[str, Outputs]:
    return {name: Outputs(values) for name, values in zip(TRIO, f, strict=False)}


def play(federation: Federation, *exchanges: dict[str, Outputs]) -> list[Any]:
    """The replies of the server's half to these uploads, in one round."""
    playing = federation.server.round(0, federation.roster)
    next(playing)
    replies = []
    for up in exchanges:
        try:
            replies.append(playing.send(up))
        except StopIteration as stop:
            replies.append(stop.value)
    return replies


# KT-pFL


def test_the_gradient_of_the_coefficients_is_that_of_their_loss() -> None:
    c = torch.softmax(outputs(1)[0, :3], -1).requires_grad_()
    y = torch.softmax(outputs(), -1)
    mixtures = torch.einsum("nm,mbk->nbk", c, y)
    loss = (y - mixtures).square().mean((1, 2)).sum() + 0.7 * (c - 1 / 3).square().mean(1).sum()
    torch.testing.assert_close(gradient(c.detach(), y, 0.7), torch.autograd.grad(loss, c)[0])


def test_a_client_learns_to_listen_to_itself_and_the_penalty_holds_it_back() -> None:
    y, shares = torch.softmax(5 * outputs(), -1), {}
    for penalty in (0.0, 100.0):
        c = torch.full((3, 3), 1 / 3, dtype=torch.float64)
        for _ in range(20):
            c = stepped(c, y, penalty, 0.05)
            torch.testing.assert_close(c.sum(1), torch.ones(3, dtype=torch.float64))
        shares[penalty] = c.diagonal().mean().item()
    assert shares[0.0] > 0.36 and shares[100.0] < shares[0.0]


def test_equal_coefficients_stay_equal_without_a_step_or_without_a_difference() -> None:
    equal = torch.ones(3, 3) / 3
    assert torch.equal(stepped(equal, torch.softmax(outputs(), -1).float(), 0.7, 0.0), equal)
    twins = torch.softmax(outputs(1), -1).float().expand(3, -1, -1)
    torch.testing.assert_close(stepped(equal, twins, 0.7, 0.01), equal)


def test_identical_clients_keep_identical_columns() -> None:
    y = torch.softmax(outputs(4), -1)
    y[3] = y[1]
    c = torch.full((4, 4), 0.25, dtype=torch.float64)
    for _ in range(5):
        c = stepped(c, y, 0.7, 0.05)
    torch.testing.assert_close(c[:, 1], c[:, 3])
    assert (c[:, 0] - c[:, 1]).abs().max() > 1e-3


def test_kt_pfl_equals_autograd_of_its_loss() -> None:
    c = torch.full((3, 3), 1 / 3, dtype=torch.float64)

    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        nonlocal c
        y = torch.stack([torch.softmax(each.detach() / 2, -1) for each in f.values()])
        c = c.detach().requires_grad_()
        mixtures = torch.einsum("nm,mbk->nbk", c, y)
        loss = (y - mixtures).square().mean((1, 2)).sum() + 0.7 * (c - 1 / 3).square().mean(1).sum()
        (slope,) = torch.autograd.grad(loss, c)
        c = torch.softmax(5 * (c.detach() - 0.01 * slope / slope.abs().mean(1, keepdim=True)), 1)
        taught = torch.einsum("nm,mbk->nbk", c, y)
        return {n: soft_divergence(own, each / 2) for (n, each), own in zip(f.items(), taught, strict=True)}

    found = check_against_plain("kt-pfl", losses, temperature=2.0)
    torch.testing.assert_close(found.server.coefficients, c)


def test_a_client_that_is_absent_keeps_its_coefficients() -> None:
    federation = build_federation("kt-pfl", nets=TRIO, dtype=torch.float64, tau=1)
    (replies,) = play(federation, uploads(outputs(2)))
    c = federation.server.coefficients
    assert list(replies) == ["anna", "ben"]
    assert torch.equal(c[2], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert torch.equal(c[:2, 2], torch.full((2,), 1 / 3, dtype=torch.float64)) and (c[0, 0] != c[0, 1])
    torch.testing.assert_close(c.sum(1), torch.ones(3, dtype=torch.float64))


# ExpGuard


def test_expguard_equals_autograd_of_its_loss() -> None:
    weights = torch.ones(3, dtype=torch.float64)

    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        nonlocal weights
        y = torch.stack([torch.softmax(each.detach(), -1) for each in f.values()])
        robust = y.median(0).values
        robust = robust / robust.sum(-1, keepdim=True)
        weights = weights * torch.exp(-3.0 / 2 * (y - robust).square().sum(-1).sqrt().mean(1))
        taught = (weights[:, None, None] * y).sum(0) / weights.sum()
        return {n: soft_divergence(taught, each) for n, each in f.items()}

    found = check_against_plain("expguard", losses, guard=3.0, floor=0.0)
    torch.testing.assert_close(found.server.log_weights.exp(), weights / weights.max())
    assert found.server.observed["smallest_weight"] < 0.9


def test_the_weight_of_an_attacker_falls_to_the_floor() -> None:
    federation = build_federation("expguard", nets=dict.fromkeys(TRIO, mlp), tau=1, guard=0.5, floor=0.2)
    honest = (0.01 * outputs()).float()
    attack = honest.clone()
    attack[2] = 20 * torch.eye(3)[0]
    seen = []
    for _ in range(6):
        play(federation, uploads(attack))
        seen.append(federation.server.log_weights.exp()[2].item())
    assert seen == sorted(seen, reverse=True) and seen[0] > seen[1] and seen[-1] == pytest.approx(0.2)
    assert (federation.server.log_weights[:2].exp() > 0.9).all()


def test_the_order_of_weights_survives_any_number_of_exchanges() -> None:
    """The authors' weights in float32 all sit on the smallest subnormal after some 200 exchanges."""
    federation = build_federation("expguard", nets=TRIO, tau=1, guard=5.0, floor=0.0)
    f = outputs().float() * torch.tensor([0.1, 0.5, 5.0])[:, None, None]
    for _ in range(500):
        play(federation, uploads(f))
    weights = federation.server.log_weights
    assert weights.isfinite().all() and len(set(weights.tolist())) == 3 and weights.max() == 0


@pytest.mark.parametrize("method", ["kt-pfl", "expguard"])
def test_both_learn(method: str) -> None:
    federation = run_rounds(build_federation(method, tau=2), 1)
    before = federation.server.state_dict()
    run_rounds(federation, range(1, 3))
    (name,) = before
    assert not torch.equal(before[name], federation.server.state_dict()[name])
