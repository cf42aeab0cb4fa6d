"""Says what is there: every expected file of a data set, present, missing or different."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedal.data.files import File, Finding
from fedal.data.source import Source
from fedal.data.sources import find
from fedal.errors import DataError


@dataclass(frozen=True)
class Report:
    """The state of each expected file; `str(report)` is what `fedal data check` prints."""

    name: str
    folder: Path
    findings: tuple[Finding, ...]
    command: str  # brings or repairs the files

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    @property
    def missing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.state == "missing")

    @property
    def different(self) -> tuple[Finding, ...]:
        """Present, but not what the publisher gave out."""
        return tuple(finding for finding in self.findings if not finding.ok and finding.state != "missing")

    def __str__(self) -> str:
        lines = [f"{self.name} in {self.folder}"]
        for finding in self.findings:
            expected = "" if finding.ok else f"; expected {finding.expected}"
            lines.append(f"  {finding.state:<14}  {finding.path.relative_to(self.folder)}  {finding.found}{expected}")
        lines.append("complete, as published" if self.ok else f"To bring or repair them: {self.command}")
        return "\n".join(lines)


def check(name: str, folder: str | os.PathLike[str] | None = None) -> Report:
    """Compares the files of a data set with what the publisher gave out; reads every byte."""
    source = find(name)
    return inspect(source, source.root(folder), folder)


def inspect(source: Source, root: Path, folder: str | os.PathLike[str] | None = None) -> Report:
    """`check` for a known source and its folder."""
    findings = tuple(part.inspect(root) for part in source.layout_at(root).expected)
    return Report(source.name, root, findings, source.fetch_command(folder))


def is_installed(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether every file is present; a quick look that reads none of them."""
    source = find(name)
    try:
        root = source.root(folder)
    except DataError:
        return False
    layout = source.layout_at(root)
    return layout.count_present(root) == len(layout.expected)


def provenance_of(source: Source, report: Report) -> str:
    """One line on how far the files can be trusted, for the run's records."""
    if not report.ok:
        return "unverified files accepted by accept_unverified"
    if all(isinstance(part, File) for part in source.layout_at(report.folder).expected):
        return "official files, checksum ok"
    return "official number of files (the publisher gives no checksum for each image)"
