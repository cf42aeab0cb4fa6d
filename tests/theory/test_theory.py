"""The theory instruments on cases with known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedal.data import load
from fedal.discriminator import Discriminator
from fedal.losses import d_cross_entropy
from fedal.metrics import disagreement
from fedal.seeding import BatchStream
from fedal.theory.bounds import ClientTerms, fedal_bound, fedmd_bound, sampling_term
from fedal.theory.convergence import averaged_norms, reference_line
from fedal.theory.domains import proxy_a_distance
from fedal.theory.equilibrium import check_equilibrium
from fedal.theory.gradients import gradients
from fedal.theory.outputs import agreement, distances, zeta


def logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# zeta


def test_zeta_is_zero_for_identical_clients() -> None:
    same = logits(1, 20, 4).expand(5, 20, 4)
    assert zeta(same).tolist() == pytest.approx([0] * 5, abs=1e-12)


def test_zeta_of_two_clients_that_never_agree_is_one_bit() -> None:
    certain = torch.tensor([[[50.0, 0.0]], [[0.0, 50.0]]])
    assert zeta(certain).tolist() == pytest.approx([math.log(2)] * 2)


def test_the_mean_of_zeta_is_the_disagreement_of_the_record() -> None:
    outputs = logits(3, 10, 4)
    assert float(zeta(outputs).mean()) == pytest.approx(float(disagreement(outputs)))


def test_an_outlier_client_has_the_largest_zeta() -> None:
    crowd = logits(1, 30, 4).expand(4, 30, 4)
    alone = logits(1, 30, 4, seed=1)
    assert int(zeta(torch.cat([crowd, alone])).argmax()) == 4


def test_distance_is_the_total_variation_distance() -> None:
    p = torch.tensor([[[0.7, 0.3]], [[0.4, 0.6]]], dtype=torch.float64)
    torch.testing.assert_close(distances(p.log()), torch.tensor([[0.0, 0.3], [0.3, 0.0]], dtype=torch.float64))


def test_agreement_counts_samples_with_one_prediction_by_all() -> None:
    outputs = torch.eye(3)[torch.tensor([[0, 1, 2, 0], [0, 1, 1, 0]])]
    assert agreement(outputs) == 0.75


# distances between datasets


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load("digits")
    return data.train_x, data.train_y


def test_two_halves_of_one_dataset_are_near_zero_apart(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = digits
    order = np.random.Generator(np.random.Philox(key=1)).permutation(len(x))
    assert proxy_a_distance(x[order[:500]], x[order[500:1000]]) < 0.2


def test_disjoint_classes_are_near_two_apart(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    assert 1.8 < proxy_a_distance(x[y < 5][:400], x[y >= 5][:400]) <= 2


def test_the_smaller_side_counts_as_much_as_the_larger_one(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """Guessing the larger side every time is right on 9 of 10 samples and must not look like a distance."""
    x, _ = digits
    order = np.random.Generator(np.random.Philox(key=2)).permutation(len(x))
    assert proxy_a_distance(x[order[:40]], x[order[40:440]]) < 0.6


# bounds


def test_the_bounds_computed_by_hand() -> None:
    clients = [
        ClientTerms(risk=0.2, zeta=0.02, public_distance=0.5, global_distance=0.4, joint_loss=0.1),
        ClientTerms(risk=0.4, zeta=0.08, public_distance=0.7, global_distance=0.8, joint_loss=0.3),
    ]
    fedal, fedmd = fedal_bound(clients, 50), fedmd_bound(clients, 50)
    # (N - 1) / N^2 = 1/4; 2 sqrt(2 zeta) = 0.4 and 0.8
    assert (fedal.risk, fedal.disagreement) == pytest.approx((0.3, (0.4 + 0.8) / 4))
    assert (fedal.distance, fedal.joint_loss) == pytest.approx(((0.5 + 0.7) / 4, 2 * (0.1 + 0.3) / 4))
    assert fedal.total == pytest.approx(0.3 + 0.3 + 0.3 + 0.2)
    # 1/N sum of d / 2 + lambda
    assert (fedmd.risk, fedmd.disagreement) == pytest.approx((0.3, 0.0))
    assert (fedmd.distance, fedmd.joint_loss) == pytest.approx(((0.2 + 0.4) / 2, (0.1 + 0.3) / 2))
    assert fedmd.total == pytest.approx(0.3 + 0.3 + 0.2)


def test_the_disagreement_term_is_the_papers_with_zeta_in_bits() -> None:
    zeta_nats = 0.03
    paper = 2 * math.sqrt(2 * math.log(2) * (zeta_nats / math.log(2)))
    client = ClientTerms(risk=0, zeta=zeta_nats, public_distance=0, global_distance=0, joint_loss=0)
    assert fedal_bound([client] * 4, 10).total == pytest.approx(paper * 3 / 4)


def test_the_sampling_term_computed_by_hand() -> None:
    # phi = 8: (4 + sqrt(16 log 2)) / (0.05 * 4)
    assert sampling_term(8) == pytest.approx((4 + math.sqrt(16 * math.log(2))) / 0.2)
    assert sampling_term(10**9) > math.sqrt(math.log(2)) / 0.05, "it does not vanish with more data"


def test_an_unknown_joint_loss_is_left_out_and_does_not_count_as_zero() -> None:
    client = ClientTerms(risk=0.1, zeta=0, public_distance=0, global_distance=0, joint_loss=None)
    assert fedal_bound([client] * 2, 10).joint_loss is None


# gradients


class Slope(nn.Module):
    """f = w * x: one weight."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def half_square(f: Tensor, part: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean of f^2 / 2."""
    return {"square": f / len(f)}


def test_the_gradient_norm_of_a_quadratic_is_known() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    found = gradients(Slope(0.5), x, half_square)["square"]
    assert found.whole.item() == pytest.approx(0.5 * (1 + 4 + 9) / 3)  # w * mean of x^2
    assert found.norm_sq == pytest.approx((0.5 * 14 / 3) ** 2)


def test_the_gradient_over_many_chunks_is_that_of_one_batch() -> None:
    x = logits(300, 1)
    assert gradients(Slope(2.0), x, half_square)["square"].whole.item() == pytest.approx(float(2 * (x**2).mean()))


def test_the_variance_of_a_full_batch_gradient_is_zero() -> None:
    x = logits(24, 1)
    found = gradients(Slope(0.5), x, half_square, BatchStream(24, 24, 0, "test"))["square"]
    assert found.variance == pytest.approx(0, abs=1e-20)


def test_the_variance_of_single_samples_is_that_of_their_gradients() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    found = gradients(Slope(0.5), x, half_square, BatchStream(4, 1, 0, "test"))["square"]
    each = 0.5 * np.array([1.0, 4.0, 9.0, 16.0])
    assert found.variance == pytest.approx(each.var())


def test_a_client_with_fewer_samples_than_a_batch_has_no_variance() -> None:
    x = logits(10, 1)
    found = gradients(Slope(0.5), x, half_square, BatchStream(10, 16, 0, "test"))["square"]
    assert found.variance == pytest.approx(0, abs=1e-20)


def test_gradients_equal_autograd_and_leave_the_model_unchanged() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = logits(40, 5), torch.arange(40) % 3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = gradients(model, x, lambda f, part: {"l": d_cross_entropy(f, y[part])})["l"]
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    nn.functional.cross_entropy(model(x), y).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(found.whole, expected)


# convergence


def test_the_average_of_squared_norms_is_weighted_by_step_sizes() -> None:
    # two clients at 0.1, a discriminator at 0.2: shares 1/2 and 1/2
    assert averaged_norms([4.0, 2.0], [8.0, 2.0], 2, 0.1, 0.2) == pytest.approx([6.0, 4.0])


def test_the_reference_line_falls_with_the_root_of_the_rounds() -> None:
    assert reference_line([4, 16, 64], [3.0, 1.0, 1.0], 5) == pytest.approx([3.0, 1.5, 0.75])


# equilibrium

ROSTER = ["a", "b", "c", "d"]


def test_identical_clients_are_at_the_equilibrium_and_every_discriminator_at_chance() -> None:
    outputs = logits(1, 60, 3).expand(4, 60, 3).contiguous()
    found = check_equilibrium(outputs, Discriminator(ROSTER, 3, dtype=torch.float64), ROSTER)
    assert found.outputs_coincide and found.discriminator_at_chance
    assert (found.discriminator, found.fresh) == (0.25, 0.25)
    assert found.largest_zeta == pytest.approx(0, abs=1e-12)
    assert found.verdict.startswith("at the equilibrium")


def test_biased_clients_are_told_apart_and_not_at_the_equilibrium() -> None:
    habits = 3 * torch.eye(4, dtype=torch.float64)[:, None, :]
    outputs = habits + 0.3 * logits(4, 60, 4)
    found = check_equilibrium(outputs, None, ROSTER)
    assert not found.outputs_coincide and found.distinguishable
    assert found.fresh > 0.9
    assert found.discriminator_at_chance is None
    assert found.verdict.startswith("not at the equilibrium")


def test_a_blind_discriminator_at_chance_is_not_an_equilibrium() -> None:
    outputs = 3 * torch.eye(4, dtype=torch.float64)[:, None, :] + 0.3 * logits(4, 60, 4)
    blind = Discriminator(ROSTER, 4, dtype=torch.float64)
    for parameter in blind.module.parameters():
        parameter.data.zero_()
    found = check_equilibrium(outputs, blind, ROSTER)
    assert found.discriminator_at_chance and not found.outputs_coincide
    assert "a fresh one tells clients apart" in found.verdict
