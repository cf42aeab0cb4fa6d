"""Server and sites as processes over mutual TLS: the bits of one process, whoever is killed on the way."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from deployments import SITES, Rehearsal, kill, wait_for


def test_processes_that_are_killed_end_with_the_bits_of_one_process(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, {"deadline_s": 8.0}, rounds=100, checkpoint_every=5, eval_every=1000)
    server = rehearsal.serve_process()
    sites = {site: rehearsal.join_process(site) for site in SITES}
    try:
        wait_for(lambda: rehearsal.committed() >= 5)
        kill(sites["client-01"])
        sites["client-01"] = rehearsal.join_process("client-01")
        wait_for(lambda: '"round lost"' in (tmp_path / "server.log").read_text())
        before = rehearsal.committed()
        wait_for(lambda: rehearsal.committed() > before)
        kill(server)
        server = rehearsal.serve_process()
        assert server.wait(120) == 0
        assert [process.wait(60) for process in sites.values()] == [0, 0, 0]
    finally:
        for process in (server, *sites.values()):
            kill(process)
    assert rehearsal.deployed() == rehearsal.alone()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_random_kills_and_stops_do_not_change_a_bit(tmp_path: Path) -> None:
    done, runs = 0, 0
    while done < 200:
        folder = tmp_path / str(runs)
        folder.mkdir()
        done += torment(folder, seed=runs, most=200 - done)
        runs += 1
    print(f"{done} faults in {runs} runs: the bits of one process")


def torment(folder: Path, seed: int, most: int, rounds: int = 1000) -> int:
    """One run with a random fault after every commit but the last ones; gives how many there were."""
    chance, faults, before = random.Random(seed), 0, -1
    deployment = {"deadline_s": 8.0}
    rehearsal = Rehearsal(folder, deployment, rounds=rounds, checkpoint_every=10, eval_every=10**6, seed=seed)
    processes = {"server": rehearsal.serve_process()} | {site: rehearsal.join_process(site) for site in SITES}

    def silences() -> int:
        return (folder / "server.log").read_text().count("no answer")

    try:
        while processes["server"].poll() is None:
            time.sleep(0.02)
            if not before < rehearsal.committed() < rounds - 20 or faults == most:
                continue
            victim, before, faults = chance.choice([*processes]), rehearsal.committed(), faults + 1
            if victim != "server" and chance.random() < 0.1:
                earlier = silences()
                os.kill(processes[victim].pid, signal.SIGSTOP)
                wait_for(lambda earlier=earlier: silences() > earlier)
                os.kill(processes[victim].pid, signal.SIGCONT)
            else:
                kill(processes[victim])
                processes[victim] = rehearsal.serve_process() if victim == "server" else rehearsal.join_process(victim)
        assert {name: process.wait(120) for name, process in processes.items()} == dict.fromkeys(processes, 0)
    finally:
        for process in processes.values():
            kill(process)
    assert rehearsal.deployed() == rehearsal.alone()
    return faults
