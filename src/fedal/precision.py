"""The kinds of numbers that a run can compute in."""

from __future__ import annotations

from fedal.lazy import torch


def dtype_of(precision: str) -> torch.dtype:
    """Of weights, data and messages; `bf16` is what torch layers compute in, nothing is kept or sent in it."""
    return {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.float32}[precision]
