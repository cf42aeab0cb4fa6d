"""Every message type: its fields with shapes, what it reveals, and which methods send it."""

from __future__ import annotations

from dataclasses import fields
from inspect import getdoc

from fedal import messages, methods
from fedal.messages import LEAK_WORDS, Leak, Message, in_words
from from_code.methods import label
from from_code.tables import code, table


def kinds() -> list[type[Message]]:
    """In the order of the source."""
    found = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)]
    return [kind for kind in found if kind is not Message]


def markdown() -> str:
    about = (getdoc(messages) or "").partition("\n\n")[2]  # what `layout` and the axes mean
    return "\n".join([f"{about}\n", "## What a message can reveal\n", _flags(), *map(_section, kinds())])


def _flags() -> str:
    return table(
        ["flag", "in words", "sent by"],
        [[code(f"Leak.{flag.name}"), words, ", ".join(_senders(flag)) or "-"] for flag, words in LEAK_WORDS.items()],
    )


def _senders(flag: Leak) -> list[str]:
    return [_link(name) for name in methods.MODULES if flag in methods.get(name).reveals]


def _link(name: str) -> str:
    return f"[{name}](#{label(name)})"


def _section(kind: type[Message]) -> str:
    rows = [[code(field.name), _type(kind, field.name), _shape(kind, field.name)] for field in fields(kind)]
    users = {
        way: [name for name in methods.MODULES if kind in getattr(methods.get(name), way)] for way in ("up", "down")
    }
    sent = [f"{way} by {', '.join(map(_link, names))}" for way, names in users.items() if names]
    return "\n".join(
        [
            f"## {kind.__name__}\n",
            f"{getdoc(kind)}\n",
            table(["field", "type", "shape"], rows),
            f"Reveals {in_words(kind.leak)}: {' | '.join(code(f'Leak.{flag.name}') for flag in kind.leak)}. "
            f"Sent {'; '.join(sent) or 'by no built-in method'}.\n",
        ]
    )


def _type(kind: type[Message], name: str) -> str:
    if name in kind.header_fields():
        return "integer, in the header"
    return kind.integer_fields.get(name, "float")


def _shape(kind: type[Message], name: str) -> str:
    if name in kind.header_fields():
        return "-"
    return f"({', '.join(kind.layout[name])})" if name in kind.layout else "any, one tensor per name"
