"""Nearness to a client's own samples: the public space, kernel densities and the logistic regression."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedal.density import PublicSpace, in_the_ball, log_density, logistic_regression


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_public_space_holds_the_directions_of_largest_variance() -> None:
    x = noise(200, 6) * torch.tensor([5.0, 4.0, 3.0, 0.1, 0.1, 0.1], dtype=torch.float64) + 7
    space = PublicSpace.of(x, 3)
    expected = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:3]
    found = space.axes / space.axes.norm(dim=0)
    torch.testing.assert_close((expected @ found).square().sum(), torch.tensor(3.0, dtype=torch.float64))
    assert space(x).square().sum(-1).mean().item() == pytest.approx(1.0)
    assert space(x).mean(0).abs().max() < 1e-12


def test_images_and_few_samples_are_fine() -> None:
    images = noise(5, 1, 4, 4)
    assert PublicSpace.of(images, 32)(images).shape == (5, 5)
    constant = PublicSpace.of(torch.ones(5, 3), 2)
    assert constant(torch.ones(2, 3)).isfinite().all()


def test_the_density_of_a_hand_case() -> None:
    own = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    found = log_density(torch.tensor([[1.0]], dtype=torch.float64), own, 0.5)
    assert found.item() == pytest.approx(-1 / (2 * 0.25))
    far = log_density(torch.full((1, 1), 1e3, dtype=torch.float64), own, 0.5)
    assert far.isfinite() and far.item() == pytest.approx(-(998**2) * 2 - math.log(2))


def test_the_density_does_not_depend_on_how_many_points_are_asked_at_once() -> None:
    points, own = noise(1100, 4), noise(30, 4, seed=1)
    torch.testing.assert_close(log_density(points, own, 0.3)[700:], log_density(points[700:], own, 0.3))


def test_the_logistic_regression_is_at_its_minimum() -> None:
    positive, negative = noise(20, 3) + 1, noise(30, 3, seed=1)
    w = logistic_regression(positive, negative, 0.1).requires_grad_()
    scores = torch.cat([positive @ w, -(negative @ w)])
    loss = torch.nn.functional.softplus(-scores).mean() + 0.05 * w.square().sum()
    (slope,) = torch.autograd.grad(loss, w)
    assert slope.abs().max() < 1e-10


def test_one_changed_sample_moves_the_regression_within_its_sensitivity() -> None:
    """100 points at +-1 labelled by their sign; one label flips: 0.22, below the bound 2 / (n lambda) = 2.

    With the sum of losses in place of the mean, as in the authors' code, the weight moves by 2.68.
    """
    ones = torch.ones(50, 1, dtype=torch.float64)
    before = logistic_regression(ones, -ones, 0.01)
    after = logistic_regression(torch.cat([ones, -ones[:1]]), -ones[1:], 0.01)
    assert (before - after).abs().item() == pytest.approx(0.22, abs=0.005)


def test_points_in_the_ball_have_norm_one_at_most() -> None:
    found = in_the_ball(torch.cat([100 * noise(5, 3), 0.01 * noise(5, 3)]))
    assert found.shape == (10, 4) and (found.norm(dim=-1) <= 1 + 1e-12).all()
    assert found[5:].norm(dim=-1).max() < 0.72
