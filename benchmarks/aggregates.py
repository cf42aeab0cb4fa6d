"""The time that each rule takes to make one value of the outputs of 100 clients.

`python -m benchmarks.aggregates` prints the best of many calls in one thread, for 32 samples and 10 classes, and fails
if a rule is slower than its limit: the server computes it while all clients wait.
"""

from __future__ import annotations

import sys
import time
from typing import cast, get_args

import torch

from fedal.aggregate import Rule, Space, combined
from fedal.methods.class_history import ClassHistory, RememberingRule, remembering

CLIENTS, SAMPLES, CLASSES, TRIM = 100, 32, 10, 0.2
REMEMBERING = get_args(RememberingRule)
LIMIT_MS, SLOW_MS = 2.0, 4.0
SLOW = ("geometric-median",)  # its steps are iterations, at most 20


def best_ms(rule: Rule | RememberingRule, space: Space, calls: int = 200) -> float:
    f = 3 * torch.randn(CLIENTS, SAMPLES, CLASSES, generator=torch.Generator().manual_seed(0))
    f[: CLIENTS // 5] *= -1e4  # attackers: what is robust has more to do
    values = torch.softmax(f, -1) if space == "probabilities" else f
    names, history = [str(index) for index in range(CLIENTS)], ClassHistory("cpu")
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        if rule in REMEMBERING:
            remembering(f, values, names, history, cast("RememberingRule", rule), 0.5, 1.0, None)
        else:
            combined(values, cast("Rule", rule), space, TRIM)
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def main() -> int:
    torch.set_num_threads(1)
    late = []
    print(f"{CLIENTS} clients, {SAMPLES} samples, {CLASSES} classes\n")
    print("| aggregate | logits | probabilities |\n|---|---|---|")
    for rule in (*get_args(Rule), *REMEMBERING):
        limit = SLOW_MS if rule in SLOW else LIMIT_MS
        found = [best_ms(rule, space) for space in get_args(Space)]
        print(f"| {rule} | " + " | ".join(f"{ms:.2f} ms" for ms in found) + " |")
        late += [f"{rule}: above {limit:g} ms"] if max(found) > limit else []
    print(*late, sep="\n")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
