"""Whether all numbers of a tensor are finite: asked of every message and of every gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedal.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    if tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16:
        # numpy: 3 to 20 times as fast as torch here, and it keeps the interpreter's lock
        return bool(np.isfinite(tensor.detach().numpy()).all())
    return bool(torch.isfinite(tensor).all())
