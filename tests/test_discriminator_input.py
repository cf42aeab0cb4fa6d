"""The discriminator that also sees the mean over the clients: its gradient, its step, and what it can tell apart."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedal
from fedal import discriminator as module
from fedal.config import Config
from fedal.discriminator import Discriminator, in_turn
from fedal.engine.loop import Federation
from fedal.engine.threads import thread_workers
from fedal.records.checkpoint import load_newest, save_checkpoint
from fedal.theory.equilibrium import check_equilibrium
from splits import build_federation, differing_clients, mlp, restore, run_rounds, same_bits, state_of

ROSTER = ("anna", "ben", "cleo", "dora")
B, K = 6, 5
SEES_MEAN = {"discriminator_input": "outputs-and-mean"}


def build(**changes: Any) -> Discriminator:
    settings = {"hidden": (7, 9), "lr": 0.05, "dtype": torch.float64, "sees_mean": True, **changes}
    return Discriminator(ROSTER, K, **settings)


def outputs(n: int = len(ROSTER), seed: int = 0) -> Tensor:
    return 3 * torch.randn(n, B, K, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def utility(discriminator: Discriminator, f: Tensor, mean: Tensor, row: int) -> Tensor:
    """U_n of one client, summed over the batch, with the mean logits of all clients given."""
    seen = torch.cat([torch.softmax(f / 2.0, -1), torch.softmax(mean / 2.0, -1)], -1)
    return -F.cross_entropy(discriminator.module(seen), torch.full((len(f),), row), reduction="sum")


@pytest.mark.parametrize("changes", [{}, {"leak": 0.2}, {"hidden": ()}, {"groups": 2}])
def test_the_gradient_equals_numeric_differentiation_with_the_mean_held_fixed(changes: dict[str, Any]) -> None:
    discriminator, f, h = build(**changes), outputs(), 1e-6
    grads, owners = discriminator.utility_grads(f, ROSTER), discriminator.owners(ROSTER).tolist()
    for n in range(len(ROSTER)):
        for index in range(B * K):
            step = torch.zeros(B * K, dtype=torch.float64)
            step[index] = h
            with torch.no_grad():
                up, down = (utility(discriminator, f[n] + s * step.view(B, K), f.mean(0), owners[n]) for s in (1, -1))
            assert grads[n].flatten()[index].item() == pytest.approx(((up - down) / (2 * h)).item(), abs=1e-6)
    assert grads.sum(-1).abs().max() < 1e-15


def test_the_gradient_would_differ_if_the_mean_moved_with_the_client() -> None:
    discriminator, f = build(), outputs()
    own = f[1].clone().requires_grad_()
    moving = torch.cat([f[:1], own[None], f[2:]]).mean(0)
    through_both = torch.autograd.grad(utility(discriminator, own, moving, 1), own)[0]
    assert not torch.allclose(discriminator.utility_grads(f, ROSTER)[1], through_both)


@pytest.mark.parametrize("present", [ROSTER, ("ben", "dora")])
def test_a_step_is_one_on_outputs_beside_the_mean_of_those_present(present: tuple[str, ...]) -> None:
    discriminator, f = build(optimizer="sgd"), outputs(len(present))
    plain, rows = copy.deepcopy(discriminator.module), [ROSTER.index(client) for client in present]
    seen = torch.cat([torch.softmax(f / 2.0, -1), torch.softmax(f.mean(0) / 2.0, -1).expand(len(f), B, K)], -1)
    scores = plain(seen.flatten(0, 1))[:, rows]
    F.cross_entropy(scores, torch.arange(len(f)).repeat_interleave(B)).backward()
    discriminator.train_step(f, present)
    for found, before in zip(discriminator.module.parameters(), plain.parameters(), strict=True):
        assert before.grad is not None
        torch.testing.assert_close(found.detach(), (before - 0.05 * before.grad).detach(), rtol=0, atol=1e-12)


def test_without_weight_on_the_mean_it_is_the_plain_discriminator() -> None:
    """The same layers, and a first layer that multiplies the mean by zero."""
    plain, conditional, f = build(sees_mean=False), build(), outputs()
    with torch.no_grad():
        first, *rest = conditional._layers
        first.weight.zero_()
        first.weight[:, :K] = plain._layers[0].weight
        first.bias.copy_(plain._layers[0].bias)
        for mine, theirs in zip(rest, plain._layers[1:], strict=True):
            mine.weight.copy_(theirs.weight)
            mine.bias.copy_(theirs.bias)
    expected = plain.utility_grads(f, ROSTER)
    torch.testing.assert_close(conditional.utility_grads(f, ROSTER), expected, rtol=0, atol=1e-14)
    assert conditional.inputs(f).shape == (len(ROSTER), B, 2 * K) and plain.inputs(f).shape == f.shape


def accuracy_on_new_samples(**changes: Any) -> float:
    """Clients that differ by a small constant, on samples whose outputs differ far more."""
    discriminator = build(hidden=(32, 32), lr=0.01, **changes)
    constant = 0.5 * torch.randn(len(ROSTER), 1, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def batch(seed: int) -> Tensor:
        samples = torch.randn(64, K, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return 2 * samples + constant

    for seed in range(400):
        discriminator.train_step(batch(seed), ROSTER)
    return float(torch.stack([discriminator.train_step(batch(10_000 + seed), ROSTER) for seed in range(20)]).mean())


def test_the_mean_shows_a_deviation_that_the_samples_hide() -> None:
    assert accuracy_on_new_samples() > 0.9 > 0.7 > accuracy_on_new_samples(sees_mean=False)


def test_parts_and_threads_have_the_bits_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 2 * B)
    found = []
    with thread_workers(2) as workers:
        for each in (in_turn, workers.map):
            discriminator = build(each=each)
            answers = [discriminator.train_and_guide(outputs(seed=seed), ROSTER) for seed in range(2)]
            found.append((answers, discriminator.state_dict()))
    assert same_bits(*found)


def trained(method: str = "fedal", rounds: int | range = 2, **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=2, **options), rounds)


@pytest.mark.parametrize("method", ["fedal", "feddf-al"])
def test_the_option_changes_what_clients_learn_and_nothing_that_is_sent(method: str) -> None:
    nets = {"anna": mlp, "ben": mlp, "cleo": mlp}
    plain, conditional = (trained(method, nets=nets, **options) for options in ({}, SEES_MEAN))
    assert differing_clients(plain, conditional) == list(nets)
    assert plain.wire.state_dict() == conditional.wire.state_dict()
    assert differing_clients(trained(method, nets=nets, discriminator_input="outputs"), plain) == []


def test_without_the_adversarial_term_it_is_fedmd_lf_bit_for_bit() -> None:
    assert differing_clients(trained(adversarial=0.0, **SEES_MEAN), trained("fedmd-lf")) == []


def test_a_restored_federation_continues_bit_for_bit(tmp_path: Path) -> None:
    options = {**SEES_MEAN, "discriminator_groups": 2, "discriminator_rule": "balance"}
    whole = trained(**options)
    save_checkpoint(tmp_path, 1, state_of(whole))
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    run_rounds(whole, range(2, 4))
    resumed = run_rounds(restore(build_federation("fedal", tau=2, **options), found[1]), range(2, 4))
    assert differing_clients(whole, resumed) == []
    assert same_bits(whole.server.state_dict(), resumed.server.state_dict())


def test_instruments_and_the_analysis_give_it_the_mean(tmp_path: Path) -> None:
    config = Config(method="fedal", clients=3, rounds=1, eval_samples=50, instruments="gradients", options=SEES_MEAN)
    norms = [row.get("discriminator_gradient", 0.0) for row in fedal.run(config, tmp_path / "run").metrics]
    assert max(norms) > 0
    discriminator, f = build(), outputs()
    with torch.no_grad():
        seen = torch.cat([torch.softmax(f / 2.0, -1), torch.softmax(f.mean(0) / 2.0, -1).expand_as(f)], -1)
        guesses = discriminator.module(seen).argmax(-1)
    expected = (guesses == torch.arange(len(ROSTER))[:, None]).double().mean().item()
    assert check_equilibrium(f, discriminator, ROSTER).discriminator == expected
