"""Strikes against sites, and quarantine for those that collect too many. Kept in the server's folder.

Refused content is a strike that stays. An absence is one for a limited time, so an honest site with a bad link is not
banned after a thousand rounds, and a hostile one can waste only a few percent of the time. The operator readmits a site
with a file in the server's folder: only the operator can write there, and the server need not run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedal.errors import CheckpointError
from fedal.records.folder import read_json, write_json

FORGIVEN_AFTER = 100  # deadlines: with two absences in that time, a site costs 2% of it
LONGEST_REASON = 300


@dataclass
class _Site:
    refused: int = 0
    absences: list[float] = field(default_factory=list)  # moments
    reason: str = ""  # of the newest strike
    quarantined: bool = False
    behind: bool = False  # sat out rounds that all other sites have saved


class Strikes:
    """All sites of a federation. Thread-safe."""

    def __init__(
        self, folder: Path, sites: Iterable[str], limit: int, deadline_s: float, log: Callable[..., None]
    ) -> None:
        self._path, self._folder, self._log = folder / "strikes.json", folder, log
        self._limit, self._memory_s = limit, FORGIVEN_AFTER * deadline_s
        self._sites = {site: _Site() for site in sites}
        self._lock = threading.RLock()

    def open(self, *, begun: bool) -> None:
        """Reads the strikes of an earlier process, or begins the file of a new run.

        A run that has `begun` must have it: a lost or damaged file would let all sites out of quarantine.
        """
        advice = f"Restore it from a backup. To forgive all sites instead: echo '{{}}' > {self._path}"
        if not self._path.exists():
            if begun:
                raise CheckpointError(f"{self._path} is missing: who has strikes, or is in quarantine? {advice}")
            write_json(self._path, {})
            return
        now = time.monotonic()
        try:
            self._sites |= read_json(
                self._path,
                lambda found: {
                    site: _Site(
                        int(found[site]["refused"]), [now] * int(found[site]["absences"]), str(found[site]["reason"]),
                        bool(found[site]["quarantined"]), bool(found[site]["behind"]),
                    )
                    for site in self._sites.keys() & found.keys()
                },
            )  # fmt: skip
        except CheckpointError as error:
            raise CheckpointError(f"{error} {advice}") from None

    def refused(self, site: str, reason: str) -> None:
        """Counts refused content."""
        with self._lock:
            self._sites[site].refused += 1
            self._strike(site, reason)

    def absent(self, site: str, reason: str) -> None:
        """Counts a missed deadline."""
        with self._lock:
            self._sites[site].absences.append(time.monotonic())
            self._strike(site, reason)

    def count(self, site: str) -> int:
        with self._lock:
            known, now = self._sites[site], time.monotonic()
            known.absences = [moment for moment in known.absences if now - moment < self._memory_s]
            return known.refused + len(known.absences)

    def reason(self, site: str) -> str:
        """Why the site got its newest strike; empty for a site without one."""
        return self._sites[site].reason

    def is_quarantined(self, site: str) -> bool:
        """Whether the site is in quarantine. Readmits it first if the operator has asked for that."""
        known = self._sites[site]
        if known.quarantined and (asked := readmission(self._folder, site)).exists():
            with self._lock:
                self._sites[site] = _Site(behind=True)
                self._write()
                asked.unlink(missing_ok=True)
            self._log("readmitted", site=site)
        return self._sites[site].quarantined

    def quarantined(self) -> list[str]:
        return [site for site in self._sites if self.is_quarantined(site)]

    def sits_out(self, site: str) -> None:
        """Notes that the others save rounds without this site."""
        self._mark_behind(site, True)

    def caught_up(self, site: str) -> None:
        """Notes that the site has saved a round together with the others."""
        self._mark_behind(site, False)

    def is_behind(self, site: str) -> bool:
        return self._sites[site].behind

    def _mark_behind(self, site: str, behind: bool) -> None:
        if self._sites[site].behind != behind:
            with self._lock:
                self._sites[site].behind = behind
                self._write()

    def _strike(self, site: str, reason: str) -> None:
        known, strikes = self._sites[site], self.count(site)
        known.reason = reason[:LONGEST_REASON]
        self._log("strike", site=site, strikes=strikes, limit=self._limit, reason=known.reason)
        if strikes >= self._limit and not known.quarantined:
            known.quarantined = known.behind = True
            readmission(self._folder, site).unlink(missing_ok=True)  # from before: it asked for nothing
            self._log("quarantine", site=site, strikes=strikes, reason=known.reason)
        self._write()

    def _write(self) -> None:
        content = {
            site: {
                "refused": known.refused, "absences": len(known.absences), "reason": known.reason,
                "quarantined": known.quarantined, "behind": known.behind,
            }
            for site, known in self._sites.items()
            if known.refused or known.absences or known.behind
        }  # fmt: skip
        try:
            write_json(self._path, content)
        except OSError as error:  # a full disk must not protect a site from its strikes
            self._log("warning", text=f"{self._path} cannot be written ({error.strerror}).")


def readmission(folder: Path, site: str) -> Path:
    """The file that asks the server of this folder to readmit a site."""
    return folder / f"readmit-{site}"
