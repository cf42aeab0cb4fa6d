"""Processor time of every method as a ratio to FedMD, in the runs of a comparison on digits.

    python -m benchmarks.method_cost [METHOD ...]

Runs what `fedal compare --methods all --dataset digits --models same --iterations 100 --seeds 1` runs, one at a time
with one worker. A FedMD run follows every method, so that both meet the same load. Exit code 1: one takes more than
ten times as long.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fedal
from fedal import methods

REFERENCE, LIMIT, REPEATS = "fedmd", 10.0, 2
SETTINGS: dict[str, Any] = dict(dataset="digits", models="same", iterations=100, workers=1)


class Cost(NamedTuple):
    """The least of some processor times of a method and of FedMD."""

    method: str
    seconds: float
    reference: float
    stacked: bool  # whether the clients' networks were trained as one

    @property
    def ratio(self) -> float:
        return self.seconds / self.reference

    def __str__(self) -> str:
        path = "stack" if self.stacked else "single"
        return f"{methods.shown(self.method):34} {self.seconds:6.2f} s {self.ratio:5.1f} x FedMD  {path}"


def method_cost(method: str, **changes: Any) -> Cost:
    pairs = [(_timed(method, changes), _timed(REFERENCE, changes)) for _ in range(REPEATS)]
    seconds, reference = (min(run[0] for run in runs) for runs in zip(*pairs, strict=True))
    return Cost(method, seconds, reference, pairs[0][0][1])


def _timed(method: str, changes: dict[str, Any]) -> tuple[float, bool]:
    """The processor time of a run, and whether its clients were stacked."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run = fedal.run(fedal.Config(**{**SETTINGS, **changes, "method": method}), Path(folder) / "run")
        return time.process_time() - began, run.config.stacked is not False


def main(names: Sequence[str]) -> int:
    _timed(REFERENCE, {})  # imports and caches
    slow = []
    for name in names:
        cost = method_cost(name)
        print(cost, flush=True)
        slow += [name] if cost.ratio > LIMIT else []
    print(f"more than {LIMIT:.0f} times FedMD: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="names of `fedal methods` (default: all)")
    sys.exit(main(parser.parse_args().methods or [*methods.MODULES]))
