"""The discriminator: its step, and the gradient that it sends to the clients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal import discriminator as module
from fedal.discriminator import ROWS, Discriminator
from fedal.records.checkpoint import load_newest, save_checkpoint
from memory import Largest
from splits import fingerprint, same_bits

ROSTER = ("anna", "ben", "cleo", "dora")
B, K = 6, 5


def build(**changes: Any) -> Discriminator:
    settings = {"hidden": (7, 9), "temperature": 2.0, "lr": 0.05, "dtype": torch.float64, **changes}
    return Discriminator(ROSTER, K, **settings)


def outputs(n: int = len(ROSTER), seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return 3 * torch.randn(n, B, K, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def network(discriminator: Discriminator) -> nn.Module:
    return discriminator._learner.module


def utility(discriminator: Discriminator, f: Tensor, n: int, temperature: float = 2.0) -> Tensor:
    """U_n of one client, summed over the batch, as the paper writes it."""
    h = network(discriminator)(torch.softmax(f / temperature, -1))
    return -F.cross_entropy(h, torch.full((len(f),), n), reduction="sum")


@pytest.mark.parametrize("changes", [{}, {"leak": 0.2}, {"temperature": 1.0}, {"hidden": ()}])
def test_the_gradient_equals_numeric_differentiation(changes: dict[str, Any]) -> None:
    discriminator, f = build(**changes), outputs()
    temperature, h = changes.get("temperature", 2.0), 1e-6
    grads = discriminator.utility_grads(f, ROSTER)
    for n in range(len(ROSTER)):
        for index in range(B * K):
            step = torch.zeros(B * K, dtype=torch.float64)
            step[index] = h
            with torch.no_grad():
                up, down = (utility(discriminator, f[n] + s * step.view(B, K), n, temperature) for s in (1, -1))
            assert grads[n].flatten()[index].item() == pytest.approx(((up - down) / (2 * h)).item(), abs=1e-6)


def test_every_row_of_the_gradient_sums_to_zero() -> None:
    assert build().utility_grads(outputs(), ROSTER).sum(-1).abs().max() < 1e-15
    single = build(dtype=torch.float32).utility_grads(outputs(dtype=torch.float32), ROSTER)
    assert single.sum(-1).abs().max() < 1e-6


def test_the_gradient_equals_the_one_with_the_discriminator_at_the_client() -> None:
    discriminator, f = build(), outputs()
    grads = discriminator.utility_grads(f, ROSTER)
    for n in range(len(ROSTER)):
        own = f[n].clone().requires_grad_()
        at_the_client = torch.autograd.grad(utility(discriminator, own, n), own)[0]
        torch.testing.assert_close(grads[n], at_the_client, rtol=0, atol=1e-15)


def test_a_step_against_the_gradient_makes_a_client_harder_to_recognise() -> None:
    discriminator, f = build(leak=0.2), outputs()
    for _ in range(5):
        discriminator.train_step(f, ROSTER)
    moved = f - 0.1 * discriminator.utility_grads(f, ROSTER)
    for n in range(len(ROSTER)):
        assert utility(discriminator, moved[n], n) < utility(discriminator, f[n], n)


def test_the_gradient_changes_neither_the_outputs_nor_the_network() -> None:
    discriminator, f = build(), outputs()
    before, state = f.clone(), fingerprint(discriminator.state_dict())
    grads = discriminator.utility_grads(f, ROSTER)
    assert torch.equal(f, before) and not f.requires_grad and not grads.requires_grad
    assert fingerprint(discriminator.state_dict()) == state
    assert all(parameter.grad is None for parameter in network(discriminator).parameters())


def test_the_gradient_is_taken_at_the_newest_weights() -> None:
    discriminator, f = build(), outputs()
    before = discriminator.utility_grads(f, ROSTER)
    discriminator.train_step(f, ROSTER)
    after = discriminator.utility_grads(f, ROSTER)
    assert not torch.allclose(before, after)
    own = f[1].clone().requires_grad_()
    expected = torch.autograd.grad(utility(discriminator, own, 1), own)[0]
    torch.testing.assert_close(after[1], expected, rtol=0, atol=1e-15)


def test_the_gradient_can_be_computed_in_a_thread_with_gradients_disabled() -> None:
    discriminator, f = build(), outputs()
    with torch.no_grad():
        grads = discriminator.utility_grads(f, ROSTER)
    assert same_bits(grads, discriminator.utility_grads(f, ROSTER))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_training_step_is_one_step_on_the_mean_over_all_outputs(optimizer: Any) -> None:
    discriminator, f = build(optimizer=optimizer), outputs()
    plain = copy.deepcopy(network(discriminator))
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    steps = make(plain.parameters(), lr=0.05)
    owners = torch.arange(len(ROSTER)).repeat_interleave(B)
    for _ in range(3):
        discriminator.train_step(f, ROSTER)
        steps.zero_grad()
        F.cross_entropy(plain(torch.softmax(f / 2.0, -1).reshape(-1, K)), owners).backward()
        steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network(discriminator).state_dict()[name], value, rtol=0, atol=1e-12)


def test_training_returns_the_accuracy_before_the_step() -> None:
    discriminator, f = build(), outputs()
    with torch.no_grad():
        guess = network(discriminator)(torch.softmax(f / 2.0, -1)).argmax(-1)
    expected = (guess == torch.arange(len(ROSTER))[:, None]).double().mean()
    assert discriminator.train_step(f, ROSTER).item() == expected.item()


def test_clients_that_are_easy_to_tell_apart_are_told_apart() -> None:
    discriminator = build(hidden=(32, 265))
    f = 6 * F.one_hot(torch.arange(4), K).double()[:, None, :] + 0.1 * outputs()
    for _ in range(60):
        accuracy = discriminator.train_step(f, ROSTER)
    assert accuracy.item() == 1.0


def test_an_absent_client_contributes_no_samples_and_the_others_keep_their_index() -> None:
    present = ("ben", "dora")
    discriminator, f = build(), outputs(2)
    plain = copy.deepcopy(network(discriminator))
    steps = torch.optim.Adam(plain.parameters(), lr=0.05)
    discriminator.train_step(f, present)
    owners = torch.tensor([1, 3]).repeat_interleave(B)
    F.cross_entropy(plain(torch.softmax(f / 2.0, -1).reshape(-1, K)), owners).backward()
    steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network(discriminator).state_dict()[name], value, rtol=0, atol=1e-12)
    grads = discriminator.utility_grads(f, present)
    own = f[1].clone().requires_grad_()
    dora = torch.autograd.grad(utility(discriminator, own, 3), own)[0]
    torch.testing.assert_close(grads[1], dora, rtol=0, atol=1e-15)


def test_the_default_network_is_the_papers() -> None:
    discriminator = Discriminator([str(n) for n in range(20)], 10)
    widths = [(part.in_features, part.out_features) for part in network(discriminator) if isinstance(part, nn.Linear)]
    assert widths == [(10, 32), (32, 265), (265, 20)]
    assert discriminator._temperature == 2.0 and discriminator._learner.settings.lr == 1e-4
    assert isinstance(network(discriminator)[-1], nn.Linear)


def test_initial_weights_depend_only_on_the_seed() -> None:
    first, second, other = build(seed=3), build(seed=3), build(seed=4)
    assert same_bits(first.state_dict(), second.state_dict())
    assert not same_bits(first.state_dict(), other.state_dict())


def test_clipping_is_optional_and_bounds_its_step() -> None:
    moves = {}
    for clip in (0.0, 1e-4):
        discriminator = build(optimizer="sgd", lr=1.0, clip=clip)
        before = discriminator.state_dict()["model"]
        discriminator.train_step(outputs(), ROSTER)
        after = discriminator.state_dict()["model"]
        moves[clip] = sum(float((after[name] - before[name]).square().sum()) for name in before) ** 0.5
    assert moves[0.0] > 1e-3 and moves[1e-4] == pytest.approx(1e-4, rel=0.02)


def test_a_restored_discriminator_continues_bit_for_bit(tmp_path: Path) -> None:
    discriminator, restored = build(dtype=torch.float32), build(dtype=torch.float32, seed=9)
    for seed in range(3):
        discriminator.train_step(outputs(seed=seed, dtype=torch.float32), ROSTER)
    save_checkpoint(tmp_path, 1, discriminator.state_dict())
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    restored.load_state_dict(found[1])
    for each in (discriminator, restored):
        for seed in range(3, 6):
            each.train_step(outputs(seed=seed, dtype=torch.float32), ROSTER)
    assert same_bits(discriminator.state_dict(), restored.state_dict())


def test_many_clients_are_processed_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    f = outputs()
    found = []
    for rows in (len(ROSTER) * B, 2 * B, 3 * B, 1):  # all at once, halves, an uneven remainder, one by one
        monkeypatch.setattr(module, "ROWS", rows)
        discriminator = build()
        accuracy = discriminator.train_step(f, ROSTER)
        weights = torch.cat([parameter.flatten() for parameter in network(discriminator).parameters()])
        found.append((accuracy, weights.detach(), discriminator.utility_grads(f, ROSTER)))
    for part in found[1:]:
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(part, found[0], strict=True))


def test_peak_memory_grows_linearly_with_the_clients() -> None:
    n, batch = 4 * ROWS // 32, 32
    roster = [str(index) for index in range(n)]
    discriminator = Discriminator(roster, K, hidden=(4,))
    with Largest() as largest:
        discriminator.train_step(torch.randn(n, batch, K), roster)
        discriminator.utility_grads(torch.randn(n, batch, K), roster)
    assert largest.numbers == ROWS * n < n * batch * n
