"""The floating-point precisions of a run."""

from __future__ import annotations

from fedal.lazy import torch


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of weights, data and messages; with `bf16` only torch layers compute in bfloat16."""
    return {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.float32}[precision]
