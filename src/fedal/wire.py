"""The boundary between a client and the server: it checks, copies and counts messages.

It rejects messages that the method does not declare, wrong shapes and dtypes, answers for another public batch,
non-finite values, integers outside their declared range and fields that contradict each other. The receiver gets a
copy, so neither side can change what the other holds. Every engine runs the same checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedal.content import ContentCheck
from fedal.errors import NonFiniteError, WireError
from fedal.finite import is_finite
from fedal.lazy import Tensor, torch
from fedal.messages import Message


class Wire:
    """Checks and byte counts of one run: `up` and `down` take a message and return the receiver's copy."""

    def __init__(
        self,
        up: Iterable[type[Message]],
        down: Iterable[type[Message]],
        sizes: Mapping[str, int],
        dtype: torch.dtype,
    ) -> None:
        self._declared = {"up": tuple(up), "down": tuple(down)}
        self._sizes = dict(sizes)  # axis name -> length, for instance {"B": 32, "K": 10}
        self._dtype = dtype
        self._exact = {  # form of a tensor without free axes: one comparison, and details only if it differs
            (kind, name): (tuple(self._sizes[axis] for axis in axes), self._expected_dtype(kind, name))
            for kind in {*self._declared["up"], *self._declared["down"]}
            for name, axes in kind.layout.items()
            if self._sizes.keys() >= {*axes}
        }
        self._content = ContentCheck({*self._declared["up"], *self._declared["down"]}, self._sizes)
        self.up_bytes: Counter[str] = Counter()
        self.down_bytes: Counter[str] = Counter()

    def up(self, client_id: str, message: object, batch: str | None, expected_batch: str | None) -> Message:
        """The server's copy of a client's upload about public batch `batch`."""
        if batch != expected_batch:
            raise WireError(
                f'client "{client_id}" answered for public batch {batch}; this exchange is about {expected_batch}. '
                "Draw the batch with self.public.batch(t, i) in every exchange."
            )
        return _copied(self._inspected("up", client_id, message, self.up_bytes))

    def down(self, client_id: str, message: object) -> Message:
        """Client `client_id`'s copy of the server's reply."""
        return _copied(self._inspected("down", client_id, message, self.down_bytes))

    def _inspected(self, direction: str, client_id: str, message: object, meter: Counter[str]) -> Message:
        """The message itself, after it has passed all checks and been counted."""
        declared = self._declared[direction]
        if not isinstance(message, Message) or type(message) not in declared:
            names = ", ".join(kind.__name__ for kind in declared) or "nothing"
            where = _where(direction, client_id)
            raise WireError(f"{type(message).__name__} {where}: this method declares {names} in that direction.")
        name, size = "", 0
        try:
            for name in message.header_fields():
                if type(getattr(message, name)) is not int:
                    found = type(getattr(message, name)).__name__
                    raise WireError(f"is a {found}: only the tensors of its layout and plain integers may cross.")
            for name, tensor in message.tensors().items():
                self._check(message, name, tensor)
                size += tensor.nbytes
            misfit = self._content.misfit(message)
            if misfit is not None:
                name = misfit.field
                raise WireError(f"{misfit.text}.")
        except (WireError, NonFiniteError) as error:
            what = f"{type(message).__name__}.{name} {_where(direction, client_id)}"
            raise type(error)(f"{what} {error}") from None
        meter[client_id] += size
        return message

    def _check(self, message: Message, name: str, tensor: Tensor) -> None:
        exact = self._exact.get((type(message), name))
        if not isinstance(tensor, torch.Tensor) or (tensor.shape, tensor.dtype) != exact:
            self._check_form(message, name, tensor)
        if tensor.is_floating_point() and not is_finite(tensor):
            raise NonFiniteError("contains non-finite values. A smaller lr (on either side) usually helps.")

    def _check_form(self, message: Message, name: str, tensor: Tensor) -> None:
        axes = message.axes_of(name)
        unknown = [axis for axis in axes or () if axis != "*" and axis not in self._sizes]
        if unknown:
            raise WireError(f'has an axis "{unknown[0]}"; the axes of this run are {", ".join(self._sizes)}.')
        if not isinstance(tensor, torch.Tensor):
            raise WireError(f"is a {type(tensor).__name__}; expected a tensor.")
        if axes is not None and not self._fits(tensor, axes):
            expected = ", ".join(f"{axis} = {self._sizes[axis]}" if axis != "*" else "any" for axis in axes)
            raise WireError(f"has shape {tuple(tensor.shape)}; expected ({expected}).")
        expected_dtype = self._expected_dtype(type(message), name)
        if tensor.dtype != expected_dtype and (axes is not None or tensor.is_floating_point()):
            raise WireError(f"has dtype {tensor.dtype}; this run uses {expected_dtype}.")

    def _expected_dtype(self, kind: type[Message], name: str) -> torch.dtype:
        """The dtype that a field must have."""
        return getattr(torch, kind.integer_fields[name]) if name in kind.integer_fields else self._dtype

    def _fits(self, tensor: Tensor, axes: tuple[str, ...]) -> bool:
        return tensor.dim() == len(axes) and all(
            axis == "*" or length == self._sizes[axis] for length, axis in zip(tensor.shape, axes, strict=True)
        )

    def state_dict(self) -> dict[str, Any]:
        return {"up_bytes": dict(self.up_bytes), "down_bytes": dict(self.down_bytes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.up_bytes, self.down_bytes = Counter(state["up_bytes"]), Counter(state["down_bytes"])


def _copied(message: Message) -> Message:
    return message.with_tensors({name: tensor.detach().clone() for name, tensor in message.tensors().items()})


def _where(direction: str, client_id: str) -> str:
    return f'from client "{client_id}"' if direction == "up" else f'to client "{client_id}"'
