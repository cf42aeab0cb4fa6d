"""The whole state of a module: `state_dict` and the buffers that it leaves out (`persistent=False`).

Such buffers may change in training too. Without them, an exported or resumed model would not be the trained one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers by name; equal to `state_dict` if every buffer is persistent."""
    state = module.state_dict()
    unsaved = {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in state}
    return {name: value.detach().clone() for name, value in {**state, **unsaved}.items()}


def load_whole_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Loads what `whole_state` returned, in place, which keeps memory formats. Raises RuntimeError if it does not fit.

    Accepts states without the buffers that `state_dict` leaves out: earlier versions did not save them.
    """
    saved = module.state_dict().keys()
    slots = {
        f"{prefix}.{name}" if prefix else name: (part._buffers, name)
        for prefix, part in module.named_modules(remove_duplicate=False)
        for name in part._buffers
    }
    unsaved = {name: value for name, value in state.items() if name in slots and name not in saved}
    module.load_state_dict({name: value for name, value in state.items() if name not in unsaved})
    for path, value in unsaved.items():
        buffers, name = slots[path]
        current = buffers[name]
        if current is not None and current.shape == value.shape:
            with torch.no_grad():
                current.copy_(value)
        else:  # the model creates or resizes it while it trains
            buffers[name] = value.detach().clone()
