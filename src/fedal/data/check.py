"""Checks whether each expected file of a dataset is present, missing or different."""

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
    command: str  # fetches or repairs the files

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    @property
    def missing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.state == "missing")

    @property
    def different(self) -> tuple[Finding, ...]:
        """The files that are present but differ from the published ones."""
        return tuple(finding for finding in self.findings if not finding.ok and finding.state != "missing")

    def __str__(self) -> str:
        lines = [f"{self.name} in {self.folder}"]
        for finding in self.findings:
            expected = "" if finding.ok else f"; expected {finding.expected}"
            lines.append(f"  {finding.state:<14}  {finding.path.relative_to(self.folder)}  {finding.found}{expected}")
        lines.append("complete, as published" if self.ok else f"To fetch or repair the files: {self.command}")
        return "\n".join(lines)


def check(name: str, folder: str | os.PathLike[str] | None = None) -> Report:
    """Compares the files of a dataset with the published ones; reads every byte."""
    source = find(name)
    return inspect(source, source.root(folder), folder)


def inspect(source: Source, root: Path, folder: str | os.PathLike[str] | None = None) -> Report:
    """`check` for a known source and its folder."""
    findings = tuple(part.inspect(root) for part in source.layout_at(root).expected)
    return Report(source.name, root, findings, source.fetch_command(folder))


def is_installed(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether every file is present; a quick test that reads none of them."""
    source = find(name)
    try:
        root = source.root(folder)
    except DataError:
        return False
    layout = source.layout_at(root)
    return layout.count_present(root) == len(layout.expected)


def provenance_of(source: Source, report: Report) -> str:
    """One line for the run's record on how the files were verified."""
    if not report.ok:
        return "unverified files accepted by accept_unverified"
    if all(isinstance(part, File) for part in source.layout_at(report.folder).expected):
        return "official files, checksum ok"
    return "official number of files (the publisher has no checksums of single images)"
