"""The messages of several clients as one, with a leading client axis on every tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from fedal.messages.base import Message


class Together(Mapping[str, Message]):
    """client -> message, like any mapping. They are taken apart when a single one is asked for."""

    def __init__(self, names: tuple[str, ...], joined: Message) -> None:
        self.names, self.joined = names, joined

    def __getitem__(self, name: str) -> Message:
        return self._apart[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _apart(self) -> dict[str, Message]:
        return dict(zip(self.names, self.joined.split(len(self.names)), strict=True))
