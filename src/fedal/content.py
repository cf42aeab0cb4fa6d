"""What the integers of a message may be, and how its fields belong together: checked at the wire, in every engine.

Shapes, dtypes and finite values are checked before. The messages declare their ranges and ties; here these are prepared
once for the axes of a run, so that a message without integers costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedal.lazy import Tensor
from fedal.messages import Message, Misfit

Limits = tuple[str, int, int]
"""A field, its smallest and its largest value."""


class ContentCheck:
    """The checks of all kinds of messages of one run."""

    def __init__(self, kinds: Iterable[type[Message]], sizes: Mapping[str, int]) -> None:
        self._numbers: dict[type[Message], list[Limits]] = {}
        self._tensors: dict[type[Message], list[Limits]] = {}
        for kind in kinds:
            limits = [
                (name, low, high if isinstance(high, int) else sizes.get(high, 0) - 1)
                for name, (low, high) in kind.ranges.items()
                if (kind.integer_fields.get(name), high) != ("uint8", 255)  # every byte is in range
            ]
            numbers = [limit for limit in limits if limit[0] in kind.header_fields()]
            tensors = [limit for limit in limits if limit not in numbers]
            if limits or kind.misfit is not Message.misfit:
                self._numbers[kind], self._tensors[kind] = numbers, tensors

    def misfit(self, message: Message) -> Misfit | None:
        """What is wrong with the content of a message whose form is right; None if nothing is."""
        numbers = self._numbers.get(type(message))
        if numbers is None:
            return None
        for name, low, high in numbers:
            value = getattr(message, name)
            if not low <= value <= high:
                return Misfit(name, f"is {value}; expected {low} to {high}")
        if any(tensor.is_meta for tensor in message.tensors().values()):
            return None  # device = meta has shapes and no values
        for name, low, high in self._tensors[type(message)]:
            tensor: Tensor = getattr(message, name)
            if tensor.numel():
                least, largest = (int(value) for value in tensor.aminmax())
                if least < low or largest > high:
                    return Misfit(name, f"holds {least if least < low else largest}; expected {low} to {high}")
        return message.misfit()
