"""Compares the engine with the naive loop on identical work, on an idle machine and next to a busy process."""

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

from benchmarks.workloads import Both, Workload, federation, prepare_both
from fedal.machine import available_cores
from fedal.simulate.assemble import Assembly

CORES = available_cores()
STACKED, SINGLE = "fedal, stacked", "fedal, not stacked"  # "fedal" alone: stacked = auto
NAIVE = ("naive, default threads", "naive, one thread")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured_peak(threads: int = CORES, size: int = 1024, repeats: int = 5) -> float:
    """GFLOP/s of a large fp32 matrix product: the machine's peak at this moment."""
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    return 2 * size**3 / min(timed(lambda: a @ b) for _ in range(repeats)) / 1e9


def has_bf16() -> bool:
    """Whether the processor supports bf16; otherwise torch emulates it, five to ten times slower than fp32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def benchmark(workload: Workload, repeats: int) -> dict[str, Any]:
    """Milliseconds per iteration of all variants: medians over interleaved repeats."""
    with ExitStack() as stack:
        both = stack.enter_context(prepare_both(workload, rounds=3 * workload.rounds * (repeats + 1)))
        gflop = _count_gflop(both)
        variants: dict[str, tuple[int, Callable[[], object]]] = {
            NAIVE[0]: (CORES, both.run_naive),
            NAIVE[1]: (1, both.run_naive),
            "fedal": (1, both.run_engine),
        }
        engines = {"fedal": both.assembly}
        if workload.is_small:
            for name, stacked in ((STACKED, True), (SINGLE, False)):
                engines[name], run_round = stack.enter_context(_engine(workload, stacked=stacked))
                variants[name] = (1, run_round)
        if has_bf16() and not workload.is_small:
            variants["fedal, bf16"] = (1, stack.enter_context(_engine(workload, precision="bf16"))[1])
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(repeats):
            for name, (threads, work) in variants.items():
                torch.set_num_threads(threads)
                if workload.rounds > 1:
                    work()  # after a pause, the first round is slower than those of a run
                times[name].append(timed(lambda work=work: [work() for _ in range(workload.rounds)]))  # type: ignore[misc]
    iterations = workload.rounds * workload.tau
    ms = {name: 1e3 * median(values) / iterations for name, values in times.items()}
    naive = min(ms[name] for name in NAIVE)
    return {
        "ms_per_iteration": ms,
        "ratio_to_better_naive": {name: naive / value for name, value in ms.items() if name not in NAIVE},
        "gflop_per_iteration": gflop,
        "repeats": repeats,
        "bits_of_single_clients": {
            name: same_weights(assembly, engines[SINGLE]) for name, assembly in engines.items() if SINGLE in engines
        },
    }


def same_weights(some: Assembly, others: Assembly) -> bool:
    """Whether the weights of all clients are equal bit for bit, after the same number of rounds."""
    pairs = zip(some.learners.values(), others.learners.values(), strict=True)
    return all(
        torch.equal(mine, theirs)
        for learner, other in pairs
        for mine, theirs in zip(learner.module.parameters(), other.module.parameters(), strict=True)  # type: ignore[attr-defined]
    )


def benchmark_under_load(workload: Workload, repeats: int) -> dict[str, Any]:
    """The same benchmark while another process computes on one core."""
    with busy_neighbour():
        return benchmark(workload, repeats)


def check_equal(workload: Workload) -> float:
    """The largest weight difference after both run two rounds in fp64, with few clients of each model."""
    few = replace(workload, clients=min(workload.clients, 5 * len(workload.models)))
    if "resnet34" in workload.models:  # a minute per client in fp64
        few = replace(workload, clients=len(workload.models))
    with prepare_both(few, rounds=2, precision="fp64") as both:
        for _ in range(2):
            both.run_engine()
            both.run_naive()
        return both.difference()


@contextmanager
def _engine(workload: Workload, **settings: Any) -> Iterator[tuple[Assembly, Callable[[], object]]]:
    with federation(workload, **settings) as assembly:
        rounds = iter(range(10**6))
        yield assembly, lambda: assembly.federation.run_round(next(rounds))


@contextmanager
def busy_neighbour() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_compute_forever, daemon=True)
    process.start()
    time.sleep(3)  # for its import of torch
    try:
        yield
    finally:
        process.kill()
        process.join()


def _compute_forever() -> None:
    torch.set_num_threads(1)
    a = torch.randn(256, 256)
    while True:
        a @ a


def _count_gflop(both: Both) -> float:
    """GFLOP per iteration of the naive loop, including the first steps' reference passes, which the engine skips."""
    counter = FlopCounterMode(display=False)
    with counter:
        both.run_naive()
    return float(counter.get_total_flops()) / both.workload.tau / 1e9
