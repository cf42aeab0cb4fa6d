"""Imports point down: a module uses only the layers below it.

Every import counts, also inside functions and under TYPE_CHECKING. docs/architecture.md shows the same layers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedal

ROOT = Path(fedal.__file__).parent
DRAWING = Path(__file__).parent.parent / "docs" / "architecture.md"

LAYERS = [  # parts on one line do not import each other
    ["cli"],
    ["report", "figures"],
    ["campaigns", "deploy", "projects"],
    ["analysis"],
    ["simulate"],
    ["theory"],
    ["records"],
    ["config", "engine"],
    ["methods"],
    ["discriminator", "generator", "autoencoder", "quantise", "wire", "metrics"],
    ["learners", "content", "sample_layout"],
    ["messages", "losses", "aggregate", "data"],
    ["models", "weighting", "density"],
    [
        "seeding",
        "durable",
        "finite",
        "precision",
        "user_code",
        "facts",
        "kernels",
        "machine",
        "installation",
        "step_size",
    ],
    ["lazy", "errors", "printable"],
]
PLACE = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(module: str) -> str:
    """fedal.engine.loop -> engine; fedal itself, which only lists the public names, is above all others."""
    return module.split(".")[1] if "." in module else ""


def imports(path: Path, source: str | None = None) -> Iterator[str]:
    """The modules of fedal that a file imports anywhere."""
    package = ".".join(["fedal", *path.relative_to(ROOT).parent.parts])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8") if source is None else source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import in {package}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT.parent / inner.replace(".", "/")).is_dir() or (
                    ROOT.parent / f"{inner.replace('.', '/')}.py"
                ).is_file()
                yield inner if is_module else str(node.module)


def imports_up(path: Path, source: str | None = None) -> list[str]:
    """The imports of a file that point up, or to another part of its own level."""
    own = part_of(".".join(["fedal", *path.relative_to(ROOT).with_suffix("").parts]))
    found = []
    for module in imports(path, source):
        if not re.match(r"fedal(\.|$)", module):
            continue
        other = part_of(module)
        if other != own and PLACE.get(other, -1) <= PLACE[own]:
            found.append(f"{own} -> {module}")
    return found


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_points_down(path: Path) -> None:
    assert imports_up(path) == []


def test_every_part_has_a_layer() -> None:
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == PLACE.keys()


@pytest.mark.parametrize(
    "source",
    [
        "from fedal.cli.app import main",
        "from fedal import campaigns",
        "import fedal.report.page",
        "def later():\n    from fedal.simulate.run import run",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fedal.deploy.site import Site",
        "from fedal.config import Config",
    ],
)
def test_an_import_that_points_up_is_found(source: str) -> None:
    assert imports_up(ROOT / "engine" / "loop.py", source)
    assert not imports_up(ROOT / "engine" / "loop.py", "from fedal.methods.server import Uploads\nimport torch")


def test_modules_of_one_part_have_no_circular_imports() -> None:
    known = {
        ".".join(["fedal", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__") for path in FILES
    }
    graph = {
        ".".join(["fedal", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): {
            module for module in imports(path) if module in known
        }
        for path in FILES
    }
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module] - {module}):
                walk(other, (*path, module))
            done.add(module)

    for module in graph:
        walk(module, ())


def test_the_layers_match_those_in_the_documentation() -> None:
    text = DRAWING.read_text(encoding="utf-8")
    drawn = re.search(r"<!-- layers -->\n```\n(.*?)```", text, re.S)
    assert drawn is not None
    lines = [line.split("  ")[0] for line in drawn[1].splitlines()]
    assert [[part.strip() for part in line.split(",")] for line in lines] == LAYERS
