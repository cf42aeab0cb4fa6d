"""What is installed: fedal's own requirements and its extras, read from the package's metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

REQUIREMENT = re.compile(r"(?P<package>[A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=(?P<lowest>[0-9.]+))?")
EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
FOR_DEVELOPERS = ("dev", "docs")


@dataclass(frozen=True)
class Requirement:
    """A package that fedal needs, always or for an extra."""

    package: str
    lowest: str  # empty: any version
    extra: str  # empty: always needed
    installed: str | None  # its version

    @property
    def is_met(self) -> bool:
        return self.installed is not None and _numbers(self.installed) >= _numbers(self.lowest)

    @property
    def problem(self) -> str:
        """What is wrong, in words; empty when nothing is."""
        if self.is_met:
            return ""
        return "missing" if self.installed is None else f"{self.installed} is too old: needs {self.lowest} or newer"


def requirements(lines: Iterable[str] | None = None) -> list[Requirement]:
    """What fedal needs, without the tools for its own development; `lines` are those of the metadata."""
    found = []
    for line in (requires("fedal") or []) if lines is None else lines:
        extra, match = EXTRA.search(line), REQUIREMENT.match(line)
        if match is None or match["package"] == "fedal" or (extra and extra[1] in FOR_DEVELOPERS):
            continue
        package = match["package"]
        found.append(Requirement(package, match["lowest"] or "", extra[1] if extra else "", _version(package)))
    return found


def extras(needed: Iterable[Requirement]) -> dict[str, list[Requirement]]:
    """extra -> what it consists of."""
    found: dict[str, list[Requirement]] = {}
    for requirement in needed:
        if requirement.extra:
            found.setdefault(requirement.extra, []).append(requirement)
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0): enough to compare releases."""
    numbers = re.match(r"[0-9.]*", text)
    parts = [int(part) for part in (numbers[0] if numbers else "").split(".") if part]
    while parts and parts[-1] == 0:  # 2.6.0 is 2.6
        parts.pop()
    return tuple(parts)
