"""The boundary between a client and the server: it checks, copies and counts messages.

It rejects messages that the method does not declare, wrong shapes and dtypes, answers for another public batch,
non-finite values, integers outside their declared range and fields that contradict each other. The receiver gets a
copy, so neither side can change what the other holds. Every engine runs the same checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedal.content import ContentCheck
from fedal.errors import NonFiniteError, WireError
from fedal.finite import is_finite
from fedal.lazy import Tensor, torch
from fedal.messages import Message, Together


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

    def up_together(self, sent: Together, batch: str | None, expected_batch: str | None) -> Mapping[str, Message]:
        """As `up` for all clients of a stack: one check and one copy."""
        if batch == expected_batch and self._is_sound("up", sent.joined, len(sent)):
            _count(sent.joined, sent.names, self.up_bytes)
            return Together(sent.names, _copied(sent.joined))
        return {client_id: self.up(client_id, own, batch, expected_batch) for client_id, own in sent.items()}

    def down_together(self, replies: Mapping[str, Message]) -> Message:
        """As `down` for all clients of a stack. They get one message with a leading client axis: a copy."""
        joined = _joined(replies)
        if joined is not None and self._is_sound("down", joined, len(replies)):
            _count(joined, replies, self.down_bytes)
            return joined
        return Message.join([self.down(client_id, own) for client_id, own in replies.items()])

    def _is_sound(self, direction: str, message: Message, size: int) -> bool:
        """Whether the messages of all clients in a joined one pass. If not, a look at each finds what is wrong."""
        kind = type(message)
        if kind not in self._declared[direction] or kind.misfit is not Message.misfit:
            return False
        for name, tensor in message.tensors().items():
            shape, dtype = self._exact.get((kind, name), (None, None))
            if shape is None or (tensor.shape, tensor.dtype) != ((size, *shape), dtype):
                return False
            if tensor.is_floating_point() and not is_finite(tensor):
                return False
        are_integers = all(type(getattr(message, name)) is int for name in kind.header_fields())
        return are_integers and self._content.misfit(message) is None

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


def _joined(messages: Mapping[str, Message]) -> Message | None:
    """A copy of the messages as one with a leading client axis; None if they differ in more than their values."""
    if isinstance(messages, Together):
        return _copied(messages.joined)
    each = [*messages.values()]
    if not _are_alike(each):
        return None
    with torch.no_grad():
        return Message.join(each)


def _count(joined: Message, client_ids: Iterable[str], meter: Counter[str]) -> None:
    size = sum(tensor[0].nbytes for tensor in joined.tensors().values())
    for client_id in client_ids:
        meter[client_id] += size


def _are_alike(messages: Sequence[Message]) -> bool:
    """Whether messages of one kind and form, with the same integers, can be joined without changing any of them."""
    first = messages[0]
    if not isinstance(first, Message) or any(type(message) is not type(first) for message in messages):
        return False
    for name in first.header_fields():
        value = getattr(first, name)
        others = [getattr(message, name) for message in messages]
        if any(other is not value and (type(other) is not type(value) or other != value) for other in others):
            return False
    for name in first.payload_fields():
        tensor = getattr(first, name)
        if not isinstance(tensor, torch.Tensor):
            return False
        for message in messages:
            other = getattr(message, name)
            if other is not tensor and (
                not isinstance(other, torch.Tensor) or (other.shape, other.dtype) != (tensor.shape, tensor.dtype)
            ):
                return False
    return True


def _where(direction: str, client_id: str) -> str:
    return f'from client "{client_id}"' if direction == "up" else f'to client "{client_id}"'
