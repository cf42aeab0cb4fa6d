"""Docstrings and signatures as autodoc wants them.

They are plain text with `code` in single backticks. autodoc reads reStructuredText, where asterisks, bars and trailing
underscores mean something, so all but code is escaped.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

SPECIAL = re.compile(r"[\\*|`]|(?<=\w)_(?!\w)")
ITEM = re.compile(r"(?:-|\d+\.) ")


def escaped(line: str) -> str:
    """The line with its `code` as literal text, and nothing else that reStructuredText would read as markup."""
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(
        f"``{part.strip('`').strip()}``" if at % 2 else SPECIAL.sub(r"\\\g<0>", part) for at, part in enumerate(parts)
    )


def as_rst(lines: list[str]) -> list[str]:
    """Paragraphs stay, list items stand alone, indented text becomes a literal block."""
    done: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not literal and not (done and done[-1].strip()):
            done += ["::", "", line]
            literal = True
        elif literal and (indented or not line.strip()):
            done.append(line)
        else:
            literal = False
            if ITEM.match(line) and done and done[-1].strip():
                done.append("")
            done.append(escaped(line))
    return done


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Forty settings with pydantic's annotations are no signature to read, and protocols are never called."""
    if inspect.isclass(obj) and issubclass(obj, BaseModel):
        return "(**settings)", returns
    if inspect.isclass(obj) and getattr(obj, "_is_protocol", False):
        return "", returns
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}
