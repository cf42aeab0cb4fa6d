"""Every error class with the exit code that it gives a command, and every code of a deployment."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
from inspect import getdoc
from pathlib import Path
from unittest.mock import patch

import fedal
from fedal.deploy.refusals import Code
from fedal.errors import FedalError
from from_code.tables import code, table

command_line = importlib.import_module("fedal.cli.app")


def classes() -> list[type[FedalError]]:
    """`FedalError` and all its kinds, in the order of the source. Only modules that define one are imported."""
    found: dict[str, type[FedalError]] = {"FedalError": FedalError}
    classes = [(path, node) for path in _sources() for node in ast.parse(path.read_text(encoding="utf-8")).body]
    count = 0
    while count < len(found):  # a kind may stand before the one that it is a kind of
        count = len(found)
        for path, node in classes:
            if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") in found for base in node.bases):
                found[node.name] = getattr(importlib.import_module(_module(path)), node.name)
    return list(found.values())


def _sources() -> list[Path]:
    """errors.py first."""
    paths = Path(fedal.__path__[0]).rglob("*.py")
    return sorted(paths, key=lambda path: (path.name != "errors.py", path))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(Path(fedal.__path__[0]).parent).with_suffix("").parts)


def markdown() -> str:
    rows = [
        [code(kind.__name__), code(kind.__module__), kind.__mro__[1].__name__, getdoc(kind) or "", str(exit_code(kind))]
        for kind in classes()
    ]
    codes = [[code(each.value), each.name.lower().replace("_", " ")] for each in Code]
    return "\n".join(
        [
            "## Classes\n",
            table(["class", "module", "kind of", "meaning", "exit code of a command"], rows),
            "## Codes of a deployment\n",
            "Causes and remedies: [errors of a deployment](../../errors.md).\n",
            table(["code", "what"], codes),
        ]
    )


def exit_code(kind: type[FedalError]) -> int:
    """What a command ends with when this error reaches its entry point: asked of the entry point itself."""

    def fail() -> None:
        raise kind.__new__(kind)

    with patch.object(command_line, "app", fail), contextlib.redirect_stderr(io.StringIO()):
        try:
            command_line.main()
        except SystemExit as end:
            return int(end.code or 0)
    raise AssertionError(f"{kind.__name__} does not end a command")
