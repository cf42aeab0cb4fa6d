"""`python -m benchmarks --against COMMIT`: that commit and this tree, measured alternately on the same machine.

A pair is one process of each tree. The two alternate, measurement by measurement, and the order changes from pair to
pair, so that other load on the machine affects both alike. Short measurements run three times and the best time counts,
which filters out load spikes. The result is the median of the ratios within the pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

from benchmarks.timed_runs import IN_PROCESS, OUT_OF_PROCESS, SLOW_PATHS
from benchmarks.worktree import HERE, worktree

BEFORE_CHAINS = "e2e985b"  # the last commit before any chain of layers could be stacked
SLOWER = 1.05  # a median ratio above this is a failure
REPEATS = 3
SCRIPT = Path(__file__).with_name("timed_runs.py")

Pairs = dict[str, list[tuple[float, float]]]  # measurement -> milliseconds before and after


def main(commit: str, pairs: int, only: str = "") -> int:
    names = [
        name for name in IN_PROCESS | OUT_OF_PROCESS if any(part in name.lower() for part in only.lower().split(","))
    ]
    with worktree(commit) as before:
        measured = measure_pairs(before / "src", HERE / "src", names, pairs)
    print("\n".join(as_markdown(measured)))
    slower = [name for name, times in measured.items() if ratio(times) > SLOWER]
    for name in slower:
        print(f"slower than {SLOWER}: {name}")
    return 1 if slower else 0


def slow_paths(pairs: int) -> Pairs:
    """The paths that stacks do not help, before there were any but LeNet5's, and now."""
    with worktree(BEFORE_CHAINS) as before:
        return measure_pairs(before / "src", HERE / "src", SLOW_PATHS, pairs)


def measure_pairs(before: Path, after: Path, names: Sequence[str], pairs: int) -> Pairs:
    measured: Pairs = {name: [] for name in names}
    for number in range(pairs):
        with ExitStack() as stack:
            processes = [stack.enter_context(_process(source)) for source in (before, after)]
            for name in names:
                turns = (0, 1) if number % 2 == 0 else (1, 0)
                repeats = REPEATS if name in IN_PROCESS else 1
                ms = [(turn, _measure(processes[turn], name)) for _ in range(repeats) for turn in turns]
                old, new = (min(value for turn, value in ms if turn == which) for which in (0, 1))
                measured[name].append((old, new))
                print(f"pair {number + 1} of {pairs}, {name}: {old:.2f} ms, {new:.2f} ms", flush=True)
    return measured


def ratio(times: Sequence[tuple[float, float]]) -> float:
    return median(after / before for before, after in times)


def as_markdown(measured: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    lines = ["", "| measurement | before, ms | after, ms | ratio, median of pairs |", "|---|---|---|---|"]
    for name, times in measured.items():
        before, after = (median(column) for column in zip(*times, strict=True))
        lines.append(f"| {name} | {before:.2f} | {after:.2f} | {ratio(times):.3f} |")
    return lines


@contextmanager
def _process(source: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT), str(source)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    try:
        yield process
    finally:
        process.terminate()
        with suppress(BrokenPipeError):  # the rest of a question to a process that has ended
            process.stdin.close()
        process.stdout.close()
        process.wait()


def _measure(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin and process.stdout
    with suppress(BrokenPipeError):  # then there is no answer either
        print(name, file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"{name}: the measuring process exited with {process.wait()}")
    return float(json.loads(answer))
