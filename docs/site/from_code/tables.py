"""A Markdown table, and types and defaults of pydantic fields in words."""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
WORDS: dict[Any, str] = {bool: "true or false", int: "integer", float: "number", str: "text"}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(value: object) -> str:
    return f"`{value}`"


def sentence(text: str) -> str:
    """With a full stop and a capital letter, unless it begins with a value, as in `balanced: ...`."""
    begins_with_value = text.split(" ", 1)[0].endswith(":")
    return f"{text[:1] if begins_with_value else text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def type_of(field: FieldInfo) -> str:
    """`integer, at least 1`; `fp32`, `fp64` or `bf16`."""
    return ", ".join([_type(field.annotation), *_limits(field.metadata)])


def default_of(field: FieldInfo) -> str:
    """As it would be written in a TOML file; `-` for none."""
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return "-"
    if isinstance(value, tuple):
        return code(list(value))
    return code(str(value).lower() if isinstance(value, bool) else value)


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(code, parts))
    if origin is Annotated:
        return ", ".join([_type(parts[0]), *(limit for extra in parts[1:] for limit in _limits_of(extra))])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in parts if part is not type(None))
    if origin is tuple:
        return f"list ({_type(parts[0])})"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return WORDS.get(annotation) or code(getattr(annotation, "__name__", annotation))


def _limits_of(extra: Any) -> list[str]:
    return _limits(extra.metadata if isinstance(extra, FieldInfo) else [extra])


def _limits(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{words} {getattr(limit, name):,}"
        for limit in metadata
        for name, words in LIMITS.items()
        if hasattr(limit, name)
    ]
