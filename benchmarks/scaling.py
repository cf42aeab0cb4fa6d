"""Measures how time and memory grow with the number of clients. Each size runs in its own process: peaks never fall.

`python -m benchmarks.scaling N` prints the measurement for one size as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine_vs_naive import timed
from benchmarks.workloads import LENET, federation

SIZES = (10, 20, 50, 100, 200)
MANY = 1000  # must fit into 2 GB


def measure(sizes: tuple[int, ...] = (*SIZES, MANY)) -> dict[str, dict[str, float]]:
    results = {}
    for clients in sizes:
        command = [sys.executable, "-m", "benchmarks.scaling", str(clients)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[str(clients)] = json.loads(done.stdout)
    return results


def megabytes_per_client(results: dict[str, dict[str, float]]) -> float:
    few, many = str(SIZES[0]), str(SIZES[-1])
    grown = results[many]["peak_mb"] - results[few]["peak_mb"]
    return grown / (SIZES[-1] - SIZES[0])


def one_size(clients: int) -> dict[str, float]:
    """Time (the median after a warm-up round) and peak memory. Private data are small, so that models dominate."""
    workload = replace(LENET, clients=clients)
    with federation(workload, per_client=40) as assembly:
        run_round = assembly.federation.run_round
        run_round(0)
        times = [timed(lambda t=t: run_round(t)) for t in range(1, 4 if clients <= SIZES[-1] else 2)]  # type: ignore[misc]
    return {
        "ms_per_iteration": 1e3 * median(times) / workload.tau,
        "peak_mb": peak_memory(),
    }


def peak_memory() -> float:
    """Peak megabytes of this process; `getrusage` would include the parent's memory at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def as_markdown(results: dict[str, dict[str, float]]) -> list[str]:
    base = results[str(SIZES[0])]["ms_per_iteration"] / SIZES[0]
    lines = ["| LeNet5 clients | ms per iteration | per client, relative to 10 | peak memory |", "|---|---|---|---|"]
    lines += [
        f"| {clients} | {row['ms_per_iteration']:.0f} | {row['ms_per_iteration'] / int(clients) / base:.2f} "
        f"| {row['peak_mb']:.0f} MB |"
        for clients, row in results.items()
    ]
    return [*lines, "", f"Memory per additional client (10 to 200): {megabytes_per_client(results):.2f} MB."]


def main() -> None:
    measured: dict[str, Any] = one_size(int(sys.argv[1]))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
