"""`make bench`: races the engine against the naive loop and writes benchmarks/results.json and docs/performance.md.

One process, interleaved repeats, medians. The naive loop runs with torch's default threads and with one; the ratio is
to the better of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.workloads import WORKLOADS, Contest, Workload, contest

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"


def measured_peak(threads: int, size: int = 1024, repeats: int = 5) -> float:
    """GFLOP/s of a large fp32 matrix product: what this machine can do at this moment."""
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    times = [_timed(lambda: a @ b) for _ in range(repeats)]
    return 2 * size**3 / min(times) / 1e9


def race(workload: Workload, repeats: int, threads: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"naive, default threads": [], "naive, one thread": [], "fedal": []}
    with contest(workload, rounds=3 * workload.rounds * (repeats + 1)) as both:
        gflop = _count_gflop(both)
        players: dict[str, tuple[int, Callable[[], None]]] = {
            "naive, default threads": (threads, both.play_naive),
            "naive, one thread": (1, both.play_naive),
            "fedal": (1, both.play_engine),
        }
        for _ in range(repeats):
            for name, (n_threads, play) in players.items():
                torch.set_num_threads(n_threads)
                times[name].append(_timed(lambda play=play: [play() for _ in range(workload.rounds)]))  # type: ignore[misc]
    iterations = workload.rounds * workload.tau
    ms = {name: 1e3 * median(values) / iterations for name, values in times.items()}
    naive = min(ms["naive, default threads"], ms["naive, one thread"])
    return {
        "ms_per_iteration": ms,
        "ratio_to_better_naive": naive / ms["fedal"],
        "gflop_per_iteration": gflop,
        "gflops_fedal": gflop / ms["fedal"] * 1e3,
    }


def check_equal(workload: Workload) -> float:
    """Both play two rounds in fp64; the largest difference of any weight."""
    with contest(workload, rounds=2, precision="fp64") as both:
        for _ in range(2):
            both.play_engine()
            both.play_naive()
        return both.difference()


def _count_gflop(both: Contest) -> float:
    """Counted on the naive loop, less the reference passes that the engine proves to be superfluous."""
    counter = FlopCounterMode(display=False)
    with counter:
        both.play_naive()
    return float(counter.get_total_flops()) / both.workload.tau / 1e9


def _timed(play: Callable[[], object]) -> float:
    began = time.perf_counter()
    play()
    return time.perf_counter() - began


def as_markdown(results: dict[str, Any]) -> str:
    lines = [
        f"{results['cores']} cores, {results['cpu_capability']}, torch {results['torch']}; medians of "
        f"{results['repeats']} interleaved repeats; measured fp32 peak {results['peak_gflops']:.0f} GFLOP/s.",
        "",
        "| workload | naive, default threads | naive, one thread | fedal | ratio to the better naive | GFLOP/s | "
        "share of peak | largest difference in fp64 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results["workloads"].items():
        ms = row["ms_per_iteration"]
        lines.append(
            f"| {name} | {ms['naive, default threads']:.0f} ms | {ms['naive, one thread']:.0f} ms "
            f"| {ms['fedal']:.0f} ms | {row['ratio_to_better_naive']:.2f} | {row['gflops_fedal']:.0f} "
            f"| {row['gflops_fedal'] / results['peak_gflops']:.0%} | {row['fp64_difference']:.0e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="parts of workloads' names, with commas")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    results: dict[str, Any] = {
        "cores": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "repeats": options.repeats,
        "peak_gflops": measured_peak(threads),
        "workloads": {},
    }
    for workload in WORKLOADS:
        if not any(part in workload.name.lower() for part in options.only.lower().split(",")):
            continue
        row = race(workload, options.repeats, threads)
        row["fp64_difference"] = check_equal(workload)
        results["workloads"][workload.name] = row
        print(f"{workload.name}: {row['ratio_to_better_naive']:.2f} x the better naive loop", flush=True)
    table = as_markdown(results)
    print(f"\n{table}")
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
