"""The state that either half of a method keeps between rounds: saves and restores the attributes that it names."""

from __future__ import annotations

from typing import Any

from fedal.lazy import torch
from fedal.learners.base import State, copied


class Keeper:
    """`kept` names attributes: tensors, plain values, objects with a `state_dict`, and dicts of these."""

    kept: tuple[str, ...] = ()  # of the class, or of one object if an option decides
    kept_apart: tuple[str, ...] = ()  # those of `kept` that are tensors with a leading client axis in a stack
    device: torch.device | str

    def state_dict(self) -> State:
        """The state that must survive a round, apart from a client's learner."""
        return {name.strip("_"): self._saved(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: State) -> None:
        """Restores what `state_dict` returned. Copies its tensors, which may be memory-mapped from a file."""
        for name in self.kept:
            setattr(self, name, self._restored(getattr(self, name), state[name.strip("_")]))

    def _saved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._saved(part) for name, part in value.items()}
        return value.state_dict() if hasattr(value, "state_dict") else copied(value, self.device)

    def _restored(self, current: Any, saved: Any) -> Any:
        if hasattr(current, "load_state_dict"):
            current.load_state_dict(saved)
            return current
        if isinstance(current, dict):
            return {name: self._restored(current.get(name), part) for name, part in saved.items()}
        return copied(saved, self.device)
