"""`is_finite` is computed by numpy where possible and by torch otherwise."""

from __future__ import annotations

import pytest
import torch

from fedal.finite import is_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_non_finite_value_anywhere_is_found(dtype: torch.dtype, bad: float) -> None:
    for position in (0, 7, 11):
        values = torch.ones(3, 4, dtype=dtype)
        assert is_finite(values) and is_finite(values.T) and is_finite(values[:0])
        values.view(-1)[position] = bad
        assert not is_finite(values) and not is_finite(values.T)


def test_a_parameter_can_be_checked() -> None:
    assert is_finite(torch.nn.Parameter(torch.ones(2)))


def test_the_largest_number_is_finite() -> None:
    assert is_finite(torch.full((100,), torch.finfo(torch.float32).max))  # their sum would overflow
