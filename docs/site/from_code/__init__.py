"""The reference, written by the code that it describes: one file per kind of page, each returns Markdown."""

from __future__ import annotations

from collections.abc import Callable

from from_code import api, commands, errors, messages, methods, settings

GENERATORS: dict[str, Callable[..., str]] = {
    "settings": settings.markdown,
    "methods": methods.markdown,
    "messages": messages.markdown,
    "errors": errors.markdown,
    "commands": commands.markdown,
    "api": api.markdown,
    "about": api.about,
}
"""What stands after `from code:` in a page -> what is put there."""
