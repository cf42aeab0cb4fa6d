"""Torch, imported at its first use: `fedal --help` and config mistakes must not wait seconds for it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for a module until something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # the next look-up is an ordinary one
        return value


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    torch = LazyModule("torch")
    Tensor = "torch.Tensor"  # its name: annotations are never evaluated
