"""The discriminator: its step, and the gradient that it sends to the clients."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedal import discriminator as module
from fedal.discriminator import MAX_SCALE, ROWS, Discriminator, bounded, in_turn, rows_of
from fedal.engine.threads import thread_workers
from fedal.records.checkpoint import load_newest, save_checkpoint
from fedal.sample_layout import BY_COLUMN
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


def some_rows(whole: nn.Module, rows: list[int]) -> nn.Module:
    """The network with these rows of its output layer alone."""
    part = copy.deepcopy(whole)
    part[-1] = nn.Linear(whole[-1].in_features, len(rows)).double()
    with torch.no_grad():
        part[-1].weight.copy_(whole[-1].weight[rows])
        part[-1].bias.copy_(whole[-1].bias[rows])
    return part


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("clip", [0.0, 1e-2])
def test_absent_clients_have_no_score_and_their_rows_stand_still(optimizer: Any, clip: float) -> None:
    """A network with the rows of ben and dora alone takes the same steps, whatever happened to the other rows."""
    discriminator, f = build(optimizer=optimizer, clip=clip), outputs(2)
    plain = some_rows(network(discriminator), [1, 3])
    steps = (torch.optim.Adam if optimizer == "adam" else torch.optim.SGD)(plain.parameters(), lr=0.05)
    for _ in range(3):
        guesses = plain(torch.softmax(f / 2.0, -1)).argmax(-1)
        accuracy = discriminator.train_step(f, ("ben", "dora"))
        assert accuracy.item() == (guesses == torch.tensor([[0], [1]])).double().mean().item()
        steps.zero_grad()
        F.cross_entropy(
            plain(torch.softmax(f / 2.0, -1).reshape(-1, K)), torch.arange(2).repeat_interleave(B)
        ).backward()
        if clip:
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        steps.step()
    found = some_rows(network(discriminator), [1, 3]).state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)
    first = some_rows(network(build()), [0, 2]).state_dict()
    last = f"{len(plain) - 1}.weight"
    assert torch.equal(some_rows(network(discriminator), [0, 2]).state_dict()[last], first[last])
    grads = discriminator.utility_grads(f, ("ben", "dora"))
    own = f[1].clone().requires_grad_()
    h = plain(torch.softmax(own / 2.0, -1))
    dora = torch.autograd.grad(-F.cross_entropy(h, torch.ones(B, dtype=torch.int64), reduction="sum"), own)[0]
    torch.testing.assert_close(grads[1], dora, rtol=0, atol=1e-12)


def test_a_row_that_returns_goes_on_from_its_own_moments_and_count() -> None:
    """Without hidden layers, rows meet in the softmax alone. Equal scores: each row's gradient is known by hand."""
    discriminator = Discriminator(ROSTER, 2, hidden=(), temperature=1.0, lr=0.1, dtype=torch.float64)
    (last,) = discriminator._layers
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    f = torch.zeros(2, 1, 2, dtype=torch.float64)  # both classes have probability 1/2, at both clients
    discriminator.train_step(f, ("anna", "ben"))
    assert not last.weight.any() and not last.bias.any()  # equal outputs: the gradients of a row cancel
    f[0, 0] = torch.tensor([50.0, 0.0])  # p = (1, 0) at the first client, (1/2, 1/2) at the second
    discriminator.train_step(f, ("cleo", "dora"))  # d = (q - e) / 2 = -+1/4; the first step of these rows: size lr
    expected = torch.tensor([[0, 0], [0, 0], [0.1, -0.1], [-0.1, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(last.weight.detach(), expected, rtol=0, atol=1e-6)
    assert discriminator.state_dict()["row_steps"].tolist() == [1, 1, 1, 1]
    discriminator.train_step(f, ("anna", "dora"))
    assert discriminator.state_dict()["row_steps"].tolist() == [2, 1, 1, 2]
    assert torch.equal(last.weight[2].detach(), expected[2]) or torch.allclose(last.weight[2], expected[2], atol=1e-6)


def test_everybody_present_has_the_same_result_with_and_without_rows() -> None:
    whole, rows = build(), build()
    rows._steps = torch.zeros(len(ROSTER), dtype=torch.float64)  # as after an absence: row by row from now on
    for seed in range(4):
        accuracy = [each.train_step(outputs(seed=seed), ROSTER) for each in (whole, rows)]
        assert torch.equal(*accuracy)
    for name, value in network(whole).state_dict().items():
        torch.testing.assert_close(network(rows).state_dict()[name], value, rtol=0, atol=1e-12)
    f = outputs(seed=9)
    torch.testing.assert_close(rows.utility_grads(f, ROSTER), whole.utility_grads(f, ROSTER), rtol=0, atol=1e-12)


def test_a_restored_discriminator_with_absences_continues_bit_for_bit(tmp_path: Path) -> None:
    discriminator, restored = build(dtype=torch.float32), build(dtype=torch.float32, seed=9)
    cohorts = [ROSTER, ("ben", "dora"), ("anna", "dora"), ROSTER, ("cleo", "dora"), ("anna", "ben")]

    def train(each: Discriminator, part: range) -> None:
        for t in part:
            each.train_step(outputs(len(cohorts[t]), t, torch.float32), cohorts[t])

    train(discriminator, range(3))
    save_checkpoint(tmp_path, 1, discriminator.state_dict())
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    restored.load_state_dict(found[1])
    for each in (discriminator, restored):
        train(each, range(3, 6))
    assert same_bits(discriminator.state_dict(), restored.state_dict())
    assert discriminator.state_dict()["row_steps"].tolist() == [4, 4, 3, 5]


@pytest.mark.parametrize("groups", [4, 5, 100])
def test_as_many_groups_as_clients_are_the_clients_bit_for_bit(groups: int) -> None:
    exact, grouped = build(), build(groups=groups)
    for present in (ROSTER, ("ben", "dora"), ROSTER):
        for each in (exact, grouped):
            each.train_step(outputs(len(present)), present)
    assert same_bits(exact.state_dict(), grouped.state_dict()) and grouped.tells_clients_apart


def test_groups_are_drawn_by_the_seed_and_of_equal_size() -> None:
    roster = [f"client-{index}" for index in range(103)]
    rows = rows_of(roster, 10, seed=1)
    sizes = Counter(rows.values())
    assert {*sizes} == {*range(10)} and {*sizes.values()} == {10, 11}
    assert [rows[client] for client in roster] != [index % 10 for index in range(103)] and rows != rows_of(
        roster, 10, seed=2
    )


def test_members_of_a_group_share_its_row() -> None:
    """With two groups of two clients, the labels of the cross-entropy are the groups."""
    grouped, f = build(groups=2), outputs()
    owners = grouped.owners(ROSTER)
    assert sorted(owners.tolist()) == [0, 0, 1, 1] and not grouped.tells_clients_apart
    plain = copy.deepcopy(network(grouped))
    assert plain[-1].out_features == 2 and grouped.chance(ROSTER) == 0.5
    steps = torch.optim.Adam(plain.parameters(), lr=0.05)
    grouped.train_step(f, ROSTER)
    F.cross_entropy(plain(torch.softmax(f / 2.0, -1).reshape(-1, K)), owners.repeat_interleave(B)).backward()
    steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network(grouped).state_dict()[name], value, rtol=0, atol=1e-12)
    own = f[2].clone().requires_grad_()
    expected = torch.autograd.grad(utility(grouped, own, int(owners[2])), own)[0]
    torch.testing.assert_close(grouped.utility_grads(f, ROSTER)[2], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("groups", "present", "most"), [(0, 20, 20), (16, 200, 16), (16, 8, 8)])
def test_scores_are_those_of_the_clients_or_groups_present(groups: int, present: int, most: int) -> None:
    roster = [str(index) for index in range(200)]
    discriminator = Discriminator(roster, K, hidden=(4,), groups=groups)
    cohort = roster[:present]
    with Largest() as largest:
        discriminator.train_step(torch.randn(present, 32, K), cohort)
        discriminator.utility_grads(torch.randn(present, 32, K), cohort)
    assert largest.numbers <= max(min(present * 32, ROWS) * most, present * 32 * K) < 1024 * 200


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


@pytest.mark.parametrize("absent", [0, 7])
def test_parts_on_threads_have_the_bits_of_parts_in_turn(absent: int) -> None:
    roster = [str(index) for index in range(300)]  # ten parts, more than a wave
    present, f = roster[absent:], torch.randn(300 - absent, 32, K, generator=torch.Generator().manual_seed(0))
    found = []
    with thread_workers(3) as workers:
        for each in (in_turn, workers.map):
            discriminator = Discriminator(roster, K, lr=0.01, each=each)
            answers = [discriminator.train_and_guide(f, present) for _ in range(2)]
            found.append([*answers[0], *answers[1], *network(discriminator).state_dict().values()])
        plain = Discriminator(roster, K, lr=0.01)
        apart = [value for _ in range(2) for value in (plain.train_step(f, present), plain.utility_grads(f, present))]
        found.append([*apart, *network(plain).state_dict().values()])
    for other in found[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0], other, strict=True))
    assert not any(value.requires_grad for value in found[1][:4])


def test_peak_memory_grows_linearly_with_the_clients() -> None:
    n, batch = 4 * ROWS // 32, 32
    roster = [str(index) for index in range(n)]
    discriminator = Discriminator(roster, K, hidden=(4,))
    with Largest() as largest:
        discriminator.train_step(torch.randn(n, batch, K), roster)
        discriminator.utility_grads(torch.randn(n, batch, K), roster)
    assert largest.numbers == ROWS * n < n * batch * n


@pytest.mark.parametrize("changes", [{}, {"sees_mean": True}, {"hidden": ()}, {"leak": 0.2, "groups": 2}])
@pytest.mark.parametrize("present", [ROSTER, ROSTER[1:]])
def test_column_by_column_it_computes_the_same_numbers(changes: dict[str, Any], present: tuple[str, ...]) -> None:
    by_sample, by_column = build(**changes), build(**changes, layout=BY_COLUMN)
    for step in range(3):
        f = outputs(len(present), seed=step)
        expected, found = (each.train_and_guide(f, present) for each in (by_sample, by_column))
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    for a, b in zip(network(by_sample).parameters(), network(by_column).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_no_gradient_exceeds_the_norms_of_the_layers(scale: float, temperature: float) -> None:
    discriminator = build(temperature=temperature)
    with torch.no_grad():
        for parameter in network(discriminator).parameters():
            parameter.mul_(scale)
    product = 1.0
    for parameter in network(discriminator).parameters():
        if parameter.dim() == 2:
            product *= float(torch.linalg.matrix_norm(parameter.detach(), 2))
    norms = discriminator.utility_grads(outputs(), ROSTER).norm(dim=-1)
    assert 0 < norms.max() <= product / (2**0.5 * temperature)


@pytest.mark.parametrize("shape", [(B, K), (3, B, K)])  # one client, a stack
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_a_discriminator_can_send_keep_their_bits(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    honest = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    honest[..., 0, :] = 0
    assert torch.equal(bounded(honest, 2.0), honest)


def test_larger_gradients_are_clipped_sample_by_sample() -> None:
    largest = MAX_SCALE / (2**0.5 * 2.0)
    grad = torch.tensor([[3.0, 4.0, 0.0], [1e6, -1e6, 0.0], [0.0, -1e6, 0.0]])
    found = bounded(grad, 2.0)
    assert torch.equal(found[0], grad[0])
    torch.testing.assert_close(found[1], largest / 2**0.5 * torch.tensor([1.0, -1.0, 0.0]))
    torch.testing.assert_close(found[2], torch.tensor([0.0, -largest, 0.0]))


@pytest.mark.parametrize("samples", [1, 8, 1000])  # the sum over all samples is no reason to clip one
def test_only_a_sample_beyond_the_largest_norm_is_clipped(samples: int) -> None:
    largest = MAX_SCALE / (2**0.5 * 2.0)
    grad = torch.zeros(samples, K)
    grad[:, 0] = 0.999 * largest
    assert torch.equal(bounded(grad, 2.0), grad)
    grad[-1, 0] = 1.001 * largest
    found = bounded(grad, 2.0)
    assert torch.equal(found[:-1], grad[:-1])
    assert float(found[-1].norm()) == pytest.approx(largest)


def test_training_and_guiding_together_have_the_same_bits() -> None:
    together, apart, f = build(dtype=torch.float32), build(dtype=torch.float32), outputs(dtype=torch.float32)
    for _ in range(3):
        accuracy, grads = together.train_and_guide(f, ROSTER)
        assert accuracy == apart.train_step(f, ROSTER)
        assert same_bits(grads, apart.utility_grads(f, ROSTER))
    assert same_bits(together.state_dict(), apart.state_dict())
