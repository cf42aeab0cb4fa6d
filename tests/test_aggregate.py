"""Means over clients."""

from __future__ import annotations

import pytest
import torch

from fedal.aggregate import (
    ClassSums,
    class_means,
    class_means_of_others,
    class_weights,
    leave_one_out,
    mean_over_clients,
    other_owners,
)


def outputs(n_clients: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n_clients, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_mean_of_a_hand_case() -> None:
    f = torch.tensor([[[1.0, 2.0]], [[3.0, 6.0]]])
    assert mean_over_clients(f).tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize("n_clients", [2, 3, 20])
def test_leave_one_out_is_the_mean_over_the_others(n_clients: int) -> None:
    f = outputs(n_clients)
    for n in range(n_clients):
        others = torch.cat([f[:n], f[n + 1 :]]).mean(0)
        recovered = leave_one_out(mean_over_clients(f), f[n], n_clients)
        torch.testing.assert_close(recovered, others, rtol=0, atol=1e-14)


def test_with_two_clients_the_teacher_of_one_is_the_other() -> None:
    f = outputs(2)
    torch.testing.assert_close(leave_one_out(mean_over_clients(f), f[0], 2), f[1], rtol=0, atol=1e-15)


def test_leave_one_out_does_not_depend_on_the_clients_own_output() -> None:
    f, g = outputs(4), outputs(4)
    g[1] = 100.0
    first, second = (leave_one_out(mean_over_clients(each), each[1], 4) for each in (f, g))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-13)


def test_a_mean_over_no_other_client_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least two clients; 1 responded"):
        leave_one_out(torch.zeros(4, 3), torch.zeros(4, 3), 1)


COUNTS = torch.tensor([[3, 0, 1], [1, 0, 0], [0, 0, 4]], dtype=torch.int32)  # no client has class 1
ROWS = torch.tensor([[[1.0], [9.0], [2.0]], [[5.0], [9.0], [9.0]], [[9.0], [9.0], [12.0]]])  # 9: ignored


def test_class_means_are_over_the_clients_that_have_the_class() -> None:
    assert class_means(ROWS, class_weights(COUNTS, "clients")).tolist() == [[3.0], [0.0], [7.0]]
    assert class_means(ROWS, class_weights(COUNTS, "samples")).tolist() == [[2.0], [0.0], [10.0]]


@pytest.mark.parametrize("by", ["clients", "samples"])
def test_means_of_the_others_exclude_the_clients_own_row(by: str) -> None:
    means = class_means_of_others(ROWS, class_weights(COUNTS, by))
    third = 3.0 if by == "clients" else 2.0
    assert means.squeeze(-1).tolist() == [
        [5.0, 0.0, 12.0],
        [1.0, 0.0, 7.0 if by == "clients" else 10.0],
        [third, 0.0, 2.0],
    ]
    assert other_owners(COUNTS).tolist() == [[1, 0, 1], [1, 0, 2], [2, 0, 1]]


def test_the_mean_over_one_other_client_equals_it_bit_for_bit() -> None:
    rows, counts = outputs(2), torch.tensor([[3, 7, 11, 13], [17, 3, 5, 7]])
    for by in ("clients", "samples"):
        assert torch.equal(class_means_of_others(rows, class_weights(counts, by)), rows.flip(0))


def test_class_sums_return_means_and_counts_of_the_added_rows() -> None:
    sums = ClassSums.empty(3, 2, device=torch.device("cpu"))
    sums.add(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([2, 2]))
    sums.add(torch.tensor([[5.0, 6.0]]), torch.tensor([0]))
    assert sums.means(torch.float32).tolist() == [[5.0, 6.0], [0.0, 0.0], [2.0, 3.0]]
    assert sums.counts.tolist() == [1, 0, 2] and sums.counts.dtype == torch.int32
