"""Loads a `Dataset` by name: its files must be present and verified before they are parsed."""

from __future__ import annotations

import os

from fedal.data.check import Report, inspect, provenance_of
from fedal.data.dataset import Dataset
from fedal.data.source import Source
from fedal.data.sources import find
from fedal.errors import DataError


def load(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    accept_unverified: bool = False,
    max_users: int | None = None,
) -> Dataset:
    """Reads a dataset by name from `folder` (default: `FEDAL_DATA` or the user's cache), after a checksum test.

    `accept_unverified` reads files that differ from the published ones; missing files are still an error.
    `max_users` (datasets with users only) decodes the samples of at most that many users.
    """
    source = find(name)
    if max_users is not None and not source.has_users:
        raise DataError(f"{name}: max_users={max_users} was given, but this dataset has no users. Leave it out.")
    if max_users is not None and max_users < 1:
        raise DataError(f"{name}: max_users={max_users}; expected at least 1.")
    root = source.root(folder)
    report = inspect(source, root, folder)
    _require(source, report, accept_unverified)
    read = source.layout_at(root).read
    arrays = read(root) if max_users is None else read(root, max_users=max_users)
    return Dataset(
        source.name,
        **arrays._asdict(),
        n_classes=source.n_classes,
        class_names=source.class_names,
        provenance=provenance_of(source, report),
        verified=report.ok,
    )


def _require(source: Source, report: Report, accept_unverified: bool) -> None:
    if len(report.missing) == len(report.findings):
        raise DataError(f"{source.name} is not installed in {report.folder}. Type: {report.command}")
    if report.missing:
        names = ", ".join(str(finding.path.relative_to(report.folder)) for finding in report.missing)
        raise DataError(f"{source.name} is incomplete in {report.folder}: missing {names}. Type: {report.command}")
    if report.different and not accept_unverified:
        first = report.different[0]
        others = f" ({len(report.different) - 1} more differ.)" if len(report.different) > 1 else ""
        hint = f" ({source.unverified_hint})" if source.unverified_hint else ""
        raise DataError(
            f"{first.path}: {first.state}: found {first.found}; expected {first.expected}.{others} "
            f"Type: {report.command} to repair, or use the files as they are with "
            f"--set accept_unverified=true{hint}."
        )
