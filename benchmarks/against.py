"""`python -m benchmarks --against COMMIT`: that commit and this tree, measured alternately on the same machine.

A pair is one process of each tree. They take turns, measurement by measurement, and who begins changes from pair to
pair: whatever else the machine does hits both alike. What is short is measured three times in turn, and the best time
counts, which a busy moment does not touch. The verdict is the median of the ratios within the pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.timed_runs import IN_PROCESS, OF_PROCESSES
from benchmarks.worktree import HERE, worktree

SLOWER = 1.05  # a median ratio above this is a failure
REPEATS = 3
SCRIPT = Path(__file__).with_name("timed_runs.py")

Pairs = dict[str, list[tuple[float, float]]]  # measurement -> milliseconds before and after


def main(commit: str, pairs: int, only: str = "") -> int:
    names = [
        name for name in IN_PROCESS | OF_PROCESSES if any(part in name.lower() for part in only.lower().split(","))
    ]
    with worktree(commit) as before:
        measured = race(before / "src", HERE / "src", names, pairs)
    print("\n".join(as_markdown(measured)))
    slower = [name for name, times in measured.items() if ratio(times) > SLOWER]
    for name in slower:
        print(f"slower than {SLOWER}: {name}")
    return 1 if slower else 0


def race(before: Path, after: Path, names: Sequence[str], pairs: int) -> Pairs:
    measured: Pairs = {name: [] for name in names}
    for number in range(pairs):
        with ExitStack() as stack:
            players = [stack.enter_context(_player(source)) for source in (before, after)]
            for name in names:
                turns = (0, 1) if number % 2 == 0 else (1, 0)
                repeats = REPEATS if name in IN_PROCESS else 1
                ms = [(turn, _ask(players[turn], name)) for _ in range(repeats) for turn in turns]
                old, new = (min(value for turn, value in ms if turn == which) for which in (0, 1))
                measured[name].append((old, new))
                print(f"pair {number + 1} of {pairs}, {name}: {old:.2f} ms, {new:.2f} ms", flush=True)
    return measured


def ratio(times: Sequence[tuple[float, float]]) -> float:
    return median(after / before for before, after in times)


def as_markdown(measured: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    lines = ["", "| measured | before, ms | after, ms | ratio, median of pairs |", "|---|---|---|---|"]
    for name, times in measured.items():
        before, after = (median(column) for column in zip(*times, strict=True))
        lines.append(f"| {name} | {before:.2f} | {after:.2f} | {ratio(times):.3f} |")
    return lines


@contextmanager
def _player(source: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT), str(source)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def _ask(player: subprocess.Popen[str], name: str) -> float:
    assert player.stdin and player.stdout
    print(name, file=player.stdin, flush=True)
    answer = player.stdout.readline()
    if not answer:
        raise SystemExit(f"{name}: the process that measured it has ended with {player.wait()}")
    return float(json.loads(answer))
