"""A link that is cut and heals, by a reset that both ends notice or by silence that neither does: the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deployments import SITES, Rehearsal, wait_for
from links import Link

CUT = "client-01"


class Scene:
    """A run in progress whose second site has a link that the test can cut."""

    def __init__(self, rehearsal: Rehearsal, service: Any, link: Link, lost: list[str]) -> None:
        self.rehearsal, self.service, self.link, self.lost = rehearsal, service, link, lost

    def wait_for_rounds(self, count: int) -> None:
        goal = self.service.journal.rounds + count
        wait_for(lambda: self.service.journal.rounds >= goal)


@contextmanager
def scene(folder: Path, deadline_s: float, rounds: int = 60) -> Iterator[Scene]:
    """Runs a federation around the test's block; at the end every site is bit-identical to a run in one process."""
    lost: list[str] = []

    def log(event: str, **fields: Any) -> None:
        if event == "round lost":
            lost.append(fields["reason"])

    rehearsal = Rehearsal(folder, {"deadline_s": deadline_s}, rounds=rounds, checkpoint_every=10, options={"tau": 1})
    link = Link(rehearsal.port)
    try:
        with rehearsal.service(log) as service:
            ways = {CUT: {"server": link.address}}
            joined = [rehearsal.join_in_thread(site, **ways.get(site, {})) for site in SITES]
            yield Scene(rehearsal, service, link, lost)
            wait_for(lambda: service.folder.summary.exists() or any(failure for _, failure in joined))
            for thread, failure in joined:
                thread.join(30)
                assert not failure
    finally:
        link.close()
    assert rehearsal.deployed() == rehearsal.alone()


@pytest.mark.parametrize(("cut", "times", "seconds"), [(Link.reset, 4, 0.1), (Link.silence, 2, 0.5)])
def test_a_link_cut_for_less_than_the_deadline_loses_no_round(
    tmp_path: Path, cut: Callable[[Link], None], times: int, seconds: float
) -> None:
    with scene(tmp_path, deadline_s=30) as running:
        for _ in range(times):
            running.wait_for_rounds(3)
            cut(running.link)
            time.sleep(seconds)
            running.link.heal()
    assert running.lost == []


@pytest.mark.parametrize("cut", [Link.silence, pytest.param(Link.reset, marks=pytest.mark.soak)])
def test_a_link_cut_beyond_the_deadline_returns_all_to_the_committed_round(
    tmp_path: Path, cut: Callable[[Link], None]
) -> None:
    with scene(tmp_path, deadline_s=1) as running:
        running.wait_for_rounds(15)
        cut(running.link)
        wait_for(lambda: running.lost)
        running.link.heal()
    assert f"{CUT}: no answer within 1 s" in running.lost[0]


@pytest.mark.soak
def test_a_connection_that_a_router_dropped_silently_is_reopened(tmp_path: Path) -> None:
    """Neither end is notified: only the site's pings detect it, within half a minute."""
    with scene(tmp_path, deadline_s=1) as running:
        running.wait_for_rounds(15)
        running.link.silence()
        wait_for(lambda: running.lost)
        running.link.heal_for_new_connections()
        silent_since = time.monotonic()
        wait_for(lambda: running.service.seats[CUT].connected)
        print(f"\na forgotten connection was reopened after {time.monotonic() - silent_since:.0f} s")
