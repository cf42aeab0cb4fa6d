"""Server and sites as processes over mutual TLS: bit-identical to one process, whichever process is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from deployments import SITES, Rehearsal, wait_for

pytestmark = pytest.mark.processes


def test_twenty_random_faults_do_not_change_a_bit(tmp_path: Path) -> None:
    print(torment_often(tmp_path, faults=20))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_random_faults_do_not_change_a_bit(tmp_path: Path) -> None:
    print(f"\n{torment_often(tmp_path, faults=200)}")


def torment_often(folder: Path, faults: int) -> str:
    """Short runs with ten random faults each; returns a summary of the faults."""
    done: Counter[str] = Counter()
    for seed in range(faults // 10):
        (folder / str(seed)).mkdir()
        done += torment(folder / str(seed), seed, faults=10)
    assert done.total() == faults and all(done[kind] for kind in ("kill -9 of a site", "SIGSTOP of a site"))
    return f"{faults} faults in {faults // 10} runs, all with the bits of one process: " + ", ".join(
        f"{count} x {kind}" for kind, count in sorted(done.items())
    )


def torment(folder: Path, seed: int, faults: int) -> Counter[str]:
    """One run with a random fault after each commit, until there were enough."""
    chance, before, done = random.Random(seed), 0, Counter[str]()  # from round 1 on, all sites have joined
    settings = {"rounds": 10 * faults + 20, "checkpoint_every": 5, "eval_every": 10**6, "options": {"tau": 1}}
    rehearsal = Rehearsal(folder, {"deadline_s": 3.0}, seed=seed, **settings)
    processes = {"server": rehearsal.serve_process()} | {site: rehearsal.join_process(site) for site in SITES}

    def silences() -> int:
        return (folder / "server.log").read_text().count("no answer")

    try:
        while processes["server"].poll() is None:
            time.sleep(0.002)
            if rehearsal.committed() <= before or done.total() == faults:
                continue
            time.sleep(chance.random() * 0.05)  # a fault may occur at any moment of a round
            before, victim = rehearsal.committed(), chance.choice([*processes])
            if victim != "server" and chance.random() < 0.15:
                done["SIGSTOP of a site"] += 1
                earlier = silences()
                os.kill(processes[victim].pid, signal.SIGSTOP)
                wait_for(lambda earlier=earlier: silences() > earlier)
                os.kill(processes[victim].pid, signal.SIGCONT)
            else:
                done["kill -9 of the server" if victim == "server" else "kill -9 of a site"] += 1
                processes[victim].kill()
                processes[victim] = rehearsal.serve_process() if victim == "server" else rehearsal.join_process(victim)
        ends = {name: process.wait(120 if name == "server" else 30) for name, process in processes.items()}
        assert ends == dict.fromkeys(processes, 0), (folder / "server.log").read_text()[-2000:]
    finally:
        for process in processes.values():
            process.kill()
    assert rehearsal.deployed() == rehearsal.alone()
    return done
