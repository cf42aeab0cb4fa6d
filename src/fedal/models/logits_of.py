"""Output adapters: the logits in what a module returns, which may be a tuple, a dict or an object with `.logits`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedal.lazy import Tensor, torch


def logits_of(output: Any) -> Tensor:
    """The tensor of logits; raises TypeError if `output` has none.

    In this order: the tensor itself, `.logits` or `["logits"]`, the only tensor of a dict, the first entry of a tuple.
    """
    if isinstance(output, torch.Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, torch.Tensor):
        return named
    if isinstance(output, Mapping):
        tensors = [value for value in output.values() if isinstance(value, torch.Tensor)]
        if len(tensors) == 1:
            return tensors[0]
    elif isinstance(output, tuple | list) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    raise TypeError(f"no logits in a {type(output).__name__}{_content(output)}")


def _content(output: Any) -> str:
    return f" with {', '.join(map(str, list(output)[:5]))}" if isinstance(output, Mapping) and output else ""
