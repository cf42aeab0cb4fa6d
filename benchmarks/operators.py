"""The time of an iteration by torch operator, profiled on one worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.workloads import Workload
from fedal.simulate.assemble import assemble

TOP = 8
OTHER, REST = "other operators", "Python and the rest"

Item = TypeVar("Item")
Result = TypeVar("Result")


class _ThisThread:
    """Runs all clients in this thread, because the profiler records only the thread that started it."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], cost: Callable[[Item], float] | None = None
    ) -> list[Result]:
        return [function(item) for item in items]


def operator_shares(workload: Workload) -> dict[str, float]:
    """Shares of the second round's time by operator, excluding the operators it calls, largest first."""
    torch.set_num_threads(1)
    federation = assemble(workload.config(), workload.split(), _ThisThread()).federation
    federation.run_round(0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        began = time.perf_counter()
        federation.run_round(1)
        total = time.perf_counter() - began
    own = {event.key: event.self_cpu_time_total / 1e6 / total for event in profiler.key_averages()}
    shares = {name.removeprefix("aten::"): share for name, share in own.items() if name.startswith("aten::")}
    ranked = sorted(shares, key=lambda name: -shares[name])
    return {
        **{name: shares[name] for name in ranked[:TOP]},
        OTHER: sum(shares[name] for name in ranked[TOP:]),
        REST: 1 - sum(shares.values()),
    }


def as_markdown(results: dict[str, dict[str, float]]) -> list[str]:
    cells = [[f"{name} {share:.0%}" for name, share in shares.items()] for shares in results.values()]
    return [
        f"| {' | '.join(results)} |",
        "|---" * len(results) + "|",
        *(f"| {' | '.join(row)} |" for row in zip(*cells, strict=True)),
        "",
        "Shares of an iteration's time on one worker by torch operator, excluding nested calls, largest first.",
    ]
