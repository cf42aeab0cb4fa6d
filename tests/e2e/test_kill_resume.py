"""A run may be killed at any moment: after resuming it equals, bit for bit, a run that was never killed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.lives import ForkServer, outcome

pytestmark = pytest.mark.processes

CONFIG: dict[str, Any] = dict(
    method="fedal",
    dataset="digits",
    clients=3,
    models=["mlp-small", "cnn-small-bn"],
    iterations=40,
    tau=2,
    batch_size=16,
    eval_every=6,
    eval_samples=60,
    checkpoint_every=1,
    workers=2,
)
ROUNDS = 20
KILLS_PER_RUN = 4


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


def _rounds_done(folder: Path) -> int:
    return max((int(path.stem.removeprefix("round-")) for path in folder.glob("checkpoints/round-*.json")), default=0)


def _kill_often(server: ForkServer, folder: Path, kills: int, seed: int) -> str:
    """Kills runs at random moments and resumes each until it is complete; returns one line of numbers.

    A kill after the end of its run does not count; slow or busy processors cause more of those.
    """
    whole = folder / "whole"
    lasting = server.live(whole, CONFIG)
    assert lasting.code == 0, lasting.error
    expected = outcome(whole)
    (whole / "summary.json").unlink()
    ending = server.live(whole, CONFIG)  # from the last checkpoint to the end
    assert ending.code == 0, ending.error
    assert outcome(whole) == expected

    moments = random.Random(seed)
    hit = late = restarted = runs = 0
    while hit < kills:
        assert late <= 10 + kills // 5, "too many kills come after the end: see `left`"
        out, runs = folder / f"killed-{runs}", runs + 1
        for _ in range(min(KILLS_PER_RUN, kills - hit)):
            left = ending.cpu_s + (lasting.cpu_s - ending.cpu_s) * (1 - _rounds_done(out) / ROUNDS)
            life = server.live(out, CONFIG, kill_after=moments.uniform(0, left))
            hit, late, restarted = (
                hit + life.killed,
                late + (not life.killed),
                restarted + (not (out / "config.toml").exists()),
            )
            assert life.killed or life.code == 0, life.error
            if not life.killed:
                break
        last = server.live(out, CONFIG)
        assert last.code == 0, last.error
        assert outcome(out) == expected, f"seed {seed}, run {runs}: differs after kill and resume"
    return (
        f"{hit} runs killed, {restarted} of them before config.toml, in {runs} runs ({late} ended first), seed {seed}"
    )


def test_ten_random_kills_each_followed_by_resume_change_no_bit(server: ForkServer, tmp_path: Path) -> None:
    print(_kill_often(server, tmp_path, kills=10, seed=int.from_bytes(os.urandom(4), "big")))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_random_kills_each_followed_by_resume_change_no_bit(server: ForkServer, tmp_path: Path) -> None:
    print(f"\nkill -9: {_kill_often(server, tmp_path, kills=200, seed=int.from_bytes(os.urandom(4), 'big'))}")


AT_REST: dict[str, Any] = {"clients": 3, "participation": 2, "rest": "disk"}


def _die_everywhere(server: ForkServer, folder: Path, every: int, settings: dict[str, Any] | None = None) -> int:
    """For each call that changes the folder, a run dies just before it and is resumed; returns the number of runs."""
    config = {**CONFIG, "clients": 2, "iterations": 6, "eval_every": 2, "eval_samples": 20, "workers": 1}
    config |= settings or {}
    assert server.live(folder / "whole", config).code == 0
    expected = outcome(folder / "whole")
    for number in range(0, 1000, every):
        out = folder / f"died-at-{number}"
        life = server.live(out, config, die_at=number)
        if life.code == 0:  # the run has fewer calls
            return number
        assert life.killed, life.error
        resumed = server.live(out, config)
        assert resumed.code == 0, f"killed before call {number}: {resumed.error}"
        assert outcome(out) == expected, f"killed before call {number}"
        left = [path.name for path in out.rglob("*") if path.name.startswith(".tmp-round-")]
        assert not left, f"killed before call {number}: {left} left behind"
    raise AssertionError("a run of three rounds made a thousand calls")


def test_a_kill_between_or_inside_the_writes_of_a_checkpoint_changes_no_bit(server: ForkServer, tmp_path: Path) -> None:
    # Every third call in the ordinary run (starting points differ between fsync, rename, fsync), all in the soak.
    assert _die_everywhere(server, tmp_path, every=3) > 40


def test_a_kill_while_clients_go_to_rest_on_disk_changes_no_bit(server: ForkServer, tmp_path: Path) -> None:
    assert _die_everywhere(server, tmp_path, every=8, settings=AT_REST) > 60


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("settings", [{}, AT_REST], ids=["memory", "disk"])
def test_a_kill_before_any_single_write_changes_no_bit(
    settings: dict[str, Any], server: ForkServer, tmp_path: Path
) -> None:
    calls = _die_everywhere(server, tmp_path, every=1, settings=settings)
    print(f"\nkill -9 before each of {calls} calls to fsync, rename, unlink and mkdir: all resumed to the same bits")
    assert calls > 40
