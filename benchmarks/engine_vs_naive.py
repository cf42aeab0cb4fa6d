"""The engine against the naive loop on identical work, alone on the machine and beside a busy process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.workloads import Contest, Workload, contest, federation
from fedal.machine import available_cores

CORES = available_cores()
NAIVE = ("naive, default threads", "naive, one thread")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured_peak(threads: int = CORES, size: int = 1024, repeats: int = 5) -> float:
    """GFLOP/s of a large fp32 matrix product: what this machine can do at this moment."""
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    return 2 * size**3 / min(timed(lambda: a @ b) for _ in range(repeats)) / 1e9


def has_bf16() -> bool:
    """Whether the processor computes in bf16; otherwise torch imitates it, five to ten times slower than fp32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def race(workload: Workload, repeats: int) -> dict[str, Any]:
    """Milliseconds per iteration of all contenders: medians over interleaved repeats."""
    with ExitStack() as stack:
        both = stack.enter_context(contest(workload, rounds=3 * workload.rounds * (repeats + 1)))
        gflop = _count_gflop(both)
        players: dict[str, tuple[int, Callable[[], object]]] = {
            NAIVE[0]: (CORES, both.play_naive),
            NAIVE[1]: (1, both.play_naive),
            "fedal": (1, both.play_engine),
        }
        if workload.config().stacked == "auto" and "lenet5" in workload.models:
            players["fedal, not stacked"] = (1, stack.enter_context(_player(workload, stacked=False)))
        if has_bf16() and "lenet5" not in workload.models:
            players["fedal, bf16"] = (1, stack.enter_context(_player(workload, precision="bf16")))
        times: dict[str, list[float]] = {name: [] for name in players}
        for _ in range(repeats):
            for name, (threads, work) in players.items():
                torch.set_num_threads(threads)
                times[name].append(timed(lambda work=work: [work() for _ in range(workload.rounds)]))  # type: ignore[misc]
    iterations = workload.rounds * workload.tau
    ms = {name: 1e3 * median(values) / iterations for name, values in times.items()}
    naive = min(ms[name] for name in NAIVE)
    return {
        "ms_per_iteration": ms,
        "ratio_to_better_naive": {name: naive / value for name, value in ms.items() if name not in NAIVE},
        "gflop_per_iteration": gflop,
        "repeats": repeats,
    }


def race_under_load(workload: Workload, repeats: int) -> dict[str, Any]:
    """The same while another process keeps every core busy half of the time or more."""
    with busy_neighbour():
        return race(workload, repeats)


def check_equal(workload: Workload) -> float:
    """Both play two rounds in fp64, few clients of each model; the largest difference of any weight."""
    few = replace(workload, clients=min(workload.clients, 5 * len(workload.models)))
    if "resnet34" in workload.models:  # a minute per client in fp64
        few = replace(workload, clients=len(workload.models))
    with contest(few, rounds=2, precision="fp64") as both:
        for _ in range(2):
            both.play_engine()
            both.play_naive()
        return both.difference()


@contextmanager
def _player(workload: Workload, **settings: Any) -> Iterator[Callable[[], object]]:
    with federation(workload, **settings) as assembly:
        rounds = iter(range(10**6))
        yield lambda: assembly.federation.run_round(next(rounds))


@contextmanager
def busy_neighbour() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_be_busy, daemon=True)
    process.start()
    time.sleep(3)  # it imports torch
    try:
        yield
    finally:
        process.kill()
        process.join()


def _be_busy() -> None:
    torch.set_num_threads(1)
    a = torch.randn(256, 256)
    while True:
        a @ a


def _count_gflop(both: Contest) -> float:
    """Counted on the naive loop, whose reference passes of the first steps the engine proves to be superfluous."""
    counter = FlopCounterMode(display=False)
    with counter:
        both.play_naive()
    return float(counter.get_total_flops()) / both.workload.tau / 1e9
