"""The engine's own cost: wire checks, batch indices, records and the loop. Also evaluation and start-up."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine_vs_naive import timed
from benchmarks.workloads import Workload, federation
from fedal.engine import loop
from fedal.engine.player import LocalPlayer
from fedal.seeding import BatchStream

EVALUATED = 1000


def engine_share(workload: Workload, rounds: int = 3) -> float:
    """The share of an iteration on one worker that is neither the clients' work nor the server's.

    Clients draw batch indices as part of their work, but that time counts as the engine's.
    """
    spent = {"clients": 0.0, "server": 0.0, "indices": 0.0}
    with (
        federation(workload, workers=1) as assembly,
        _clocked(LocalPlayer, "take", "clients", spent),
        _clocked(loop, "_send", "server", spent),
        _clocked(BatchStream, "indices", "indices", spent),
    ):
        assembly.federation.run_round(0)
        spent.update(dict.fromkeys(spent, 0.0))
        total = sum(timed(lambda t=t: assembly.federation.run_round(t)) for t in range(1, 1 + rounds))  # type: ignore[misc]
    return (total - spent["clients"] - spent["server"] + spent["indices"]) / total


@contextmanager
def _clocked(owner: Any, name: str, key: str, spent: dict[str, float]) -> Iterator[None]:
    function: Callable[..., Any] = getattr(owner, name)

    def clocked(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[key] += time.perf_counter() - began

    setattr(owner, name, clocked)
    try:
        yield
    finally:
        setattr(owner, name, function)


def evaluation(workload: Workload, repeats: int = 3) -> dict[str, float]:
    """Images per second for all clients on the worker threads, and evaluation's share of a run with the defaults."""
    config = workload.config()
    with federation(workload) as assembly:
        view, tests = assembly.view, assembly.view.tests.used(whole=True)
        view.tests = replace(view.tests, some=tests.repeat(-(-EVALUATED // len(tests)))[:EVALUATED])
        evaluate = view.evaluate_all
        evaluate()
        per_image = median(timed(evaluate) for _ in range(repeats)) / EVALUATED / workload.clients
        assembly.federation.run_round(0)
        rounds = range(1, 1 + repeats)
        training = median(timed(lambda t=t: assembly.federation.run_round(t)) for t in rounds) / workload.tau  # type: ignore[misc]
    phases = 1 + config.eval_after_local
    evaluating = phases * config.eval_samples * workload.clients * per_image
    return {
        "images_per_second": 1 / per_image,
        "share_of_run": evaluating / (evaluating + config.eval_interval * training),
    }


def seconds_to_first_iteration(repeats: int = 3) -> float:
    """Seconds from the command `fedal run` on digits to the first row of its record, after the first iteration."""
    return median(_first_row() for _ in range(repeats))


def _first_row() -> float:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run" / "metrics.jsonl"
        settings = ["--set", "tau=1", "--set", "eval_every=1", "--iterations", "1000"]
        command = [str(Path(sys.executable).with_name("fedal")), "run", "--out", str(record.parent), *settings]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while process.poll() is None and not (record.exists() and record.stat().st_size):
                time.sleep(0.01)
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
            return time.perf_counter() - began
        finally:
            process.kill()
            process.wait()
