"""Prints the lower bounds of pyproject.toml as constraints for pip: `python -m tests.lowest > lowest.txt`.

`make lowest` installs these versions and runs the quick tests with them, so that no bound claims too much. Torch is
left at the tested version of constraints.txt: its bits are part of what fedal promises, and its wheels are large.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BOUND = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)>=(?P<lowest>[0-9][0-9.]*)$")
NOT_LOWERED = ("torch",)
ONLY_FOR_WRITING_CODE = ("ruff", "mypy", "grpcio-tools")  # no test imports them


def requirements(project: dict[str, Any]) -> Iterator[str]:
    """Every requirement of the project and its extras; `fedal[...]` among them only points at other extras."""
    extras = project["optional-dependencies"].values()
    for requirement in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        if not requirement.startswith(f"{project['name']}["):
            yield requirement


def lowest(project: dict[str, Any]) -> dict[str, str]:
    """package -> the lowest version that the project says it works with."""
    found = {}
    for requirement in requirements(project):
        bound = BOUND.match(requirement)
        if bound and bound["name"] not in (*NOT_LOWERED, *ONLY_FOR_WRITING_CODE):
            found[bound["name"]] = bound["lowest"]
    return found


def read_project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


if __name__ == "__main__":
    print((ROOT / "constraints.txt").read_text(encoding="utf-8"), end="")
    for name, version in lowest(read_project()).items():
        print(f"{name}=={version}")
