"""A fast check that a tensor has only finite values, made on every message and every gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal.lazy import Tensor, torch

SMALL = 4096  # elements; above this, numpy may split a sum of squares among threads


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite, for a tensor of any shape."""
    if math.isfinite(sum_of_squares(tensor)):  # in one pass; an overflow is inconclusive
        return True
    values = _as_array(tensor)
    return bool(torch.isfinite(tensor).all() if values is None else np.isfinite(values).all())


def sum_of_squares(tensor: Tensor) -> float:
    """Of a small tensor in main memory; NaN, which no comparison passes, for any other: there it would cost time."""
    values = _as_array(tensor)
    if values is None or values.size > SMALL:
        return math.nan
    flat = values.ravel(order="K")  # as they are in memory: a copy by rows takes longer than the sum
    return float(np.vdot(flat, flat))


def _as_array(tensor: Tensor) -> NDArray[Any] | None:
    """The values for numpy, which is 3 to 20 times as fast as torch here, and holds the GIL; None if it has no such."""
    if not tensor.is_cpu or tensor.dtype == torch.bfloat16:
        return None
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()
