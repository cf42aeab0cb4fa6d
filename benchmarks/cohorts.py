"""10,000 LeNet5 clients on synthetic data, 100 in each round and the others on disk, against a run of 100 clients.

`python -m benchmarks.cohorts N STACKED` prints the measurement of one run as JSON: N clients, 100 of which take part in
each round. Each run is a process of its own, because peaks of memory never fall.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedal
import fedal.data
from benchmarks.scaling import GROUPS, medians_of_processes, peak_memory

COHORT, ROSTER = 100, 10_000
SAMPLES = 10  # of each client
ROUNDS = 4  # the first is not timed
REPEATS = 3
RUNS = {  # title -> clients, stacked
    "100 clients, not stacked": (COHORT, False),
    "100 clients": (COHORT, "auto"),
    "10,000 clients, 100 per round": (ROSTER, "auto"),
    "150 clients, 100 per round": (COHORT * 3 // 2, "auto"),  # most have a state already, which is read
}

Measured = dict[str, float]


class Clock(fedal.Callback):
    """The processor time at the end of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round(self, run: Any, iteration: int) -> None:
        self.seconds.append(time.process_time())


def measure() -> dict[str, Measured]:
    """Medians of interleaved repeats."""
    cases = {title: [str(clients), json.dumps(stacked)] for title, (clients, stacked) in RUNS.items()}
    return medians_of_processes("benchmarks.cohorts", cases, REPEATS)


def one_run(clients: int, stacked: bool | str) -> Measured:
    """Processor time per participating client and iteration, and peak memory, of a run with defaults."""
    generator = np.random.Generator(np.random.Philox(key=1))
    x = generator.standard_normal((1000 + SAMPLES * clients, 1, 28, 28), dtype=np.float32)
    y = np.arange(len(x)) % 10
    resting: dict[str, Any] = dict(participation=COHORT, rest="disk") if clients > COHORT else {}
    never = dict.fromkeys(("eval_every", "checkpoint_every"), 10**6)
    config = fedal.Config(
        clients=clients,
        models="lenet5",
        stacked=stacked,
        partition="iid",
        rounds=ROUNDS,
        options={"discriminator_groups": GROUPS},
        **never,
        **resting,
    )
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="cohorts-") as folder:
        data = fedal.data.from_tensors(x, y, test_x=x[:20], test_y=y[:20])
        fedal.run(config, Path(folder) / "run", data=data, callbacks=[clock])
    used = (clock.seconds[-1] - clock.seconds[0]) / (ROUNDS - 1)
    return {"processor_ms": 1e3 * used / COHORT / config.tau, "peak_mb": peak_memory()}


def as_markdown(results: Mapping[str, Measured]) -> list[str]:
    few = [results[title]["processor_ms"] for title, (clients, _) in RUNS.items() if clients == COHORT]
    lines = [
        f"| LeNet5, {GROUPS} groups; rounds without evaluations and checkpoints "
        "| processor ms per participating client and iteration "
        "| relative to each run of 100 | peak memory |",
        "|---|---|---|---|",
    ]
    for title, row in results.items():
        ratios = ", ".join(f"{row['processor_ms'] / other:.2f}" for other in few)
        lines.append(f"| {title} | {row['processor_ms']:.1f} | {ratios} | {row['peak_mb']:.0f} MB |")
    return lines


if __name__ == "__main__":
    print(json.dumps(one_run(int(sys.argv[1]), json.loads(sys.argv[2]))))
