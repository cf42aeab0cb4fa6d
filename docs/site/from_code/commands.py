"""Every command with its help, its arguments and its options, asked of the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from fedal.cli.app import app
from from_code.tables import code, table


def commands() -> Iterator[tuple[str, Any]]:
    """`fedal data fetch` -> its command, in the order of `fedal --help`; groups are left out."""
    yield from _walk("fedal", get_command(app))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
    else:
        for child in children.values():
            yield from _walk(f"{name} {child.name}", child)


def markdown() -> str:
    return "\n".join(_section(name, command) for name, command in commands())


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    rows = [_row(parameter, context) for parameter in command.params]
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## {name}\n", f"{command.help}\n", f"```text\n{usage}\n```\n"]
    return "\n".join([*parts, table(["argument or option", "meaning"], rows)] if rows else parts)


def _row(parameter: Any, context: Any) -> list[str]:
    names, text = parameter.get_help_record(context) or (parameter.name.upper(), "")
    return [code(names), text]
