"""Text from another party, made safe to print."""

from __future__ import annotations

MAX_LENGTH = 2000  # longer than any text that fedal sends


def printable(text: str) -> str:
    r"""The text in one line that cannot command a terminal: control characters become escapes, such as \x1b.

    So do line breaks, which could forge a line of fedal's own, and marks that reverse the direction of writing.
    """
    shown = text[:MAX_LENGTH]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(text) <= MAX_LENGTH else f"{shown} ... ({len(text)} characters)"
