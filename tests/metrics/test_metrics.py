"""The metrics: accuracy, disagreement, and the subset that is evaluated during training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedal.data.strata import stratified_subset
from fedal.data.streams import Samples
from fedal.errors import NonFiniteError
from fedal.learners.torch_learner import TorchLearner
from fedal.metrics import EVALUATION_BATCH, accuracy, disagreement


class Echo:
    """Returns its inputs as logits."""

    def predict(self, x: Tensor) -> Tensor:
        return x


def one_hot(classes: list[int]) -> Samples:
    return Samples(np.eye(4, dtype=np.float32)[classes], torch.float32)


def test_accuracy_is_the_share_of_the_chosen_samples_with_the_largest_logit_at_their_label() -> None:
    logits, labels = one_hot([0, 1, 2, 3, 0]), torch.tensor([0, 1, 2, 0, 1])
    assert accuracy(Echo(), logits, labels, torch.arange(5)) == 3 / 5
    assert accuracy(Echo(), logits, labels, torch.tensor([3, 4, 0])) == 1 / 3


def test_accuracy_over_many_batches_counts_every_sample_once() -> None:
    n = 2 * EVALUATION_BATCH + 7
    logits = one_hot([k % 4 for k in range(n)])
    labels = torch.tensor([k % 4 if k % 3 else (k + 1) % 4 for k in range(n)])
    assert accuracy(Echo(), logits, labels, torch.arange(n)) == pytest.approx(sum(k % 3 > 0 for k in range(n)) / n)


def test_accuracy_is_measured_in_evaluation_mode_and_changes_no_buffer() -> None:
    learner = TorchLearner(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.9)))
    before = learner.weights()
    x = Samples(5 + np.eye(4, dtype=np.float32), torch.float32)
    assert accuracy(learner, x, torch.arange(4), torch.arange(4)) == 1.0
    assert all(torch.equal(before[name], value) for name, value in learner.weights().items())


def test_non_finite_outputs_are_an_error_and_not_an_accuracy() -> None:
    x = Samples(np.array([[0.0, np.nan]], dtype=np.float32), torch.float32)
    with pytest.raises(NonFiniteError, match="non-finite values on the test set"):
        accuracy(Echo(), x, torch.tensor([0]), torch.arange(1))


def test_clients_with_equal_outputs_do_not_disagree() -> None:
    f = torch.randn(1, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).expand(4, 5, 3)
    assert abs(disagreement(f).item()) < 1e-15
    shifted = f + torch.arange(4, dtype=torch.float64)[:, None, None]  # the same probabilities
    assert abs(disagreement(shifted).item()) < 1e-15


def test_disagreement_of_a_hand_case() -> None:
    """p = (1/4, 3/4) and (3/4, 1/4): the mean is (1/2, 1/2), both are at the same distance."""
    f = torch.tensor([[[0.0, math.log(3)]], [[math.log(3), 0.0]]], dtype=torch.float64)
    assert disagreement(f).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-15)


def test_clients_that_are_sure_of_different_classes_disagree_by_the_log_of_their_number() -> None:
    f = torch.eye(4)[:, None, :].expand(4, 2, 4) * 1e4
    assert disagreement(f).item() == pytest.approx(math.log(4), abs=1e-6)


def test_a_subset_has_the_proportions_of_the_classes() -> None:
    labels = np.random.Generator(np.random.Philox(key=0)).permutation(np.repeat([0, 1, 3], [500, 300, 200]))
    chosen = stratified_subset(labels, 100, seed=0)
    assert len(np.unique(chosen)) == 100
    assert np.bincount(labels[chosen], minlength=4).tolist() == [50, 30, 0, 20]


def test_a_subset_of_any_size_is_as_close_to_the_proportions_as_possible() -> None:
    labels = np.repeat([0, 1, 2], [57, 31, 12])
    for size in range(1, 100):
        counts = np.bincount(labels[stratified_subset(labels, size, seed=0)], minlength=3)
        assert counts.sum() == size
        assert np.abs(counts - size * np.array([0.57, 0.31, 0.12])).max() < 0.7


def test_a_subset_is_fixed_by_the_seed_and_sorted() -> None:
    labels = np.repeat([0, 1], 50)
    first = stratified_subset(labels, 20, seed=0)
    assert first.tolist() == stratified_subset(labels, 20, seed=0).tolist() == sorted(first.tolist())
    assert first.tolist() != stratified_subset(labels, 20, seed=1).tolist()


def test_a_subset_larger_than_the_data_is_the_whole_data() -> None:
    assert stratified_subset(np.array([0, 1, 1, 0]), 100, seed=0).tolist() == [0, 1, 2, 3]
