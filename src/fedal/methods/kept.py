"""What a half of a method keeps between rounds: attributes that it names once, and that are saved and restored here."""

from __future__ import annotations

from typing import Any, ClassVar

from fedal.lazy import torch
from fedal.learners.base import State, copied


class Keeper:
    """`kept` names attributes: tensors, plain values, things with a state of their own, and dicts of these."""

    kept: ClassVar[tuple[str, ...]] = ()
    device: torch.device | str

    def state_dict(self) -> State:
        """What must survive a round, besides the learner of a client."""
        return {name.strip("_"): self._saved(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: State) -> None:
        """Takes back what `state_dict` gave, and keeps none of its tensors: they may be pages of a file."""
        for name in self.kept:
            setattr(self, name, self._restored(getattr(self, name), state[name.strip("_")]))

    def _saved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._saved(part) for name, part in value.items()}
        return value.state_dict() if hasattr(value, "state_dict") else copied(value, self.device)

    def _restored(self, present: Any, saved: Any) -> Any:
        if hasattr(present, "load_state_dict"):
            present.load_state_dict(saved)
            return present
        if isinstance(present, dict):
            return {name: self._restored(present.get(name), part) for name, part in saved.items()}
        return copied(saved, self.device)
