"""Measures how time and memory grow with the number of clients. Each size runs in its own process: peaks never fall.
The sizes take turns, so that other load on the machine affects all alike.

`python -m benchmarks.scaling N [GROUPS]` prints the measurement for one size as JSON, with a discriminator that tells
all clients apart or GROUPS groups. Processor time is that of all threads: on a busy machine it says more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine_vs_naive import timed
from benchmarks.workloads import LENET, federation

SIZES = (10, 20, 50, 100, 200)
MANY = 1000  # must fit into 2 GB
GROUPS = 32
REPEATS = 3


def measure(sizes: tuple[int, ...] = (*SIZES, MANY)) -> dict[str, dict[str, float]]:
    """Medians of interleaved repeats."""
    cases = {str(size): (size, 0) for size in sizes} | {f"{sizes[-1]} in {GROUPS} groups": (sizes[-1], GROUPS)}
    return medians_of_processes(
        "benchmarks.scaling", {name: [*map(str, case)] for name, case in cases.items()}, REPEATS
    )


def medians_of_processes(module: str, cases: Mapping[str, Sequence[str]], repeats: int) -> dict[str, dict[str, float]]:
    """Runs `python -m MODULE ARGUMENTS`, which prints numbers as JSON, for all cases in turn; medians of repeats."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, arguments in cases.items():
            command = [sys.executable, "-m", module, *arguments]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout))
    return {name: {key: median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}


def megabytes_per_client(results: dict[str, dict[str, float]]) -> float:
    few, many = str(SIZES[0]), str(SIZES[-1])
    grown = results[many]["peak_mb"] - results[few]["peak_mb"]
    return grown / (SIZES[-1] - SIZES[0])


def one_size(clients: int, groups: int = 0) -> dict[str, float]:
    """Time (the median after a warm-up round) and peak memory. Private data are small, so that models dominate."""
    workload = replace(LENET, clients=clients)
    with federation(workload, per_client=40, options={"discriminator_groups": groups}) as assembly:
        run_round = assembly.federation.run_round
        run_round(0)
        began, rounds = time.process_time(), range(1, 4)
        times = [timed(lambda t=t: run_round(t)) for t in rounds]  # type: ignore[misc]
        used = time.process_time() - began
    return {
        "ms_per_iteration": 1e3 * median(times) / workload.tau,
        "processor_ms_per_iteration": 1e3 * used / len(rounds) / workload.tau,
        "peak_mb": peak_memory(),
    }


def peak_memory() -> float:
    """Peak megabytes of this process; `getrusage` would include the parent's memory at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def as_markdown(results: dict[str, dict[str, float]]) -> list[str]:
    lines = [
        "| LeNet5 clients | ms per iteration | per client, relative to 10 | processor time, the same | peak memory |",
        "|---|---|---|---|---|",
    ]
    for name, row in results.items():
        each = [_relative(results, name, time) for time in ("ms_per_iteration", "processor_ms_per_iteration")]
        lines.append(f"| {name} | {row['ms_per_iteration']:.0f} | {each[0]} | {each[1]} | {row['peak_mb']:.0f} MB |")
    return [*lines, "", f"Memory per additional client (10 to 200): {megabytes_per_client(results):.2f} MB."]


def _relative(results: dict[str, dict[str, float]], name: str, time: str) -> str:
    """The time per client in words, relative to that of the smallest size."""
    first, own = results[str(SIZES[0])], results[name]
    if time not in own or time not in first:
        return ""
    return f"{own[time] / int(name.split()[0]) / (first[time] / SIZES[0]):.2f}"


def main() -> None:
    measured: dict[str, Any] = one_size(*map(int, sys.argv[1:]))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
