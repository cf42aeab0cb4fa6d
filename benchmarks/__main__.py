"""`make bench`: benchmarks the engine against the naive loop, and measures scaling, evaluation and start-up.

One process, interleaved repeats, medians. The naive loop runs with torch's default threads and with one; ratios are
relative to the faster of the two. Writes benchmarks/results.json and the generated part of docs/performance.md.
`--only` measures some parts and leaves the other results as they are.

`--against COMMIT` instead measures that commit and this tree alternately, and writes nothing: see against.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import against, cohorts, engine_share, engine_vs_naive, operators, scaling
from benchmarks.workloads import LARGE, LENET, SMALL, WORKLOADS, Workload

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"


def machine() -> dict[str, Any]:
    return {
        "cores": engine_vs_naive.CORES,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bf16": engine_vs_naive.has_bf16(),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
    }


def benchmark(workload: Workload, repeats: int) -> dict[str, Any]:
    if "resnet34" in workload.models:
        repeats = 1  # minutes each
    return {
        "peak_gflops": engine_vs_naive.measured_peak(),
        **engine_vs_naive.benchmark(workload, repeats),
        "fp64_difference": engine_vs_naive.check_equal(workload),
    }


def parts(repeats: int) -> dict[str, Callable[[], Any]]:
    measurements: dict[str, Callable[[], Any]] = {w.name: lambda w=w: benchmark(w, repeats) for w in WORKLOADS}  # type: ignore[misc]
    return measurements | {
        f"{LENET.name} under load": lambda: engine_vs_naive.benchmark_under_load(LENET, repeats),
        "scaling": scaling.measure,
        "cohorts": cohorts.measure,
        "slow paths": lambda: against.slow_paths(pairs=repeats),
        "operators": lambda: {w.name: operators.operator_shares(w) for w in (SMALL[0], LENET, *LARGE)},
        "engine share": lambda: {w.name: engine_share.engine_share(w) for w in (SMALL[0], LENET, LARGE[0])},
        "evaluation": lambda: {w.name: engine_share.evaluation(w) for w in (LENET, LARGE[0])},
        "seconds to first iteration": engine_share.seconds_to_first_iteration,
    }


def as_markdown(results: dict[str, Any]) -> str:
    here = results["machine"]
    lines = [
        f"{here['cores']} cores, {here['cpu_capability']}, torch {here['torch']}; medians of interleaved repeats.",
        "" if here["bf16"] else "This processor has no bf16 arithmetic, so bf16 is not measured here.",
        "",
        "| workload | variant | ms per iteration | ratio to the better naive | GFLOP/s | share of peak | bits |",
        "|---|---|---|---|---|---|---|",
    ]
    timed = {name: row for name, row in results.items() if isinstance(row, dict) and "ms_per_iteration" in row}
    for name, row in timed.items():
        for variant, ms in row["ms_per_iteration"].items():
            ratio = row["ratio_to_better_naive"].get(variant)
            gflops = row["gflop_per_iteration"] / ms * 1e3
            peak = f"{gflops / row['peak_gflops']:.0%}" if "peak_gflops" in row else ""
            shown = "" if ratio is None else f"**{ratio:.2f}**"
            bits = {True: "single", False: "other"}.get(row.get("bits_of_single_clients", {}).get(variant), "")
            time = f"{ms:.0f}" if ms >= 10 else f"{ms:.2f}"
            lines.append(f"| {name} | {variant} | {time} | {shown} | {gflops:.0f} | {peak} | {bits} |")
    lines += ["", "Bits: whether the weights of all clients equal those of single clients bit for bit after the race."]
    lines += ["", "Largest weight difference between the engine and the naive loop after two rounds in fp64: "]
    lines[-1] += ", ".join(f"{n} {row['fp64_difference']:.0e}" for n, row in timed.items() if "fp64_difference" in row)
    if "scaling" in results:
        lines += ["", *scaling.as_markdown(results["scaling"])]
    if "cohorts" in results:
        lines += ["", *cohorts.as_markdown(results["cohorts"])]
    if "slow paths" in results:
        lines += against.as_markdown(results["slow paths"])
        lines += ["", f"Before: commit {against.BEFORE_CHAINS}, which could stack nothing but LeNet5."]
    if "operators" in results:
        lines += ["", *operators.as_markdown(results["operators"])]
    if "engine share" in results:
        share = ", ".join(f"{name} {value:.1%}" for name, value in results["engine share"].items())
        lines += ["", f"The engine's own share of an iteration (wire, batch indices, records, loop): {share}."]
    if "evaluation" in results:
        rates = [
            f"{name} {row['images_per_second']:,.0f} images/s, {row['share_of_run']:.1%} of a run with the defaults"
            for name, row in results["evaluation"].items()
        ]
        lines += ["", f"Evaluation: {'; '.join(rates)}."]
    if "seconds to first iteration" in results:
        seconds = results["seconds to first iteration"]
        lines += ["", f"From the command `fedal run` on digits to the record of its first iteration: {seconds:.1f} s."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="comma-separated parts of the measurements' names")
    parser.add_argument("--against", metavar="COMMIT", help="compare the speed of this tree with that of a commit")
    parser.add_argument("--pairs", type=int, default=7, help="number of pairs for --against")
    options = parser.parse_args()
    if options.against:
        sys.exit(against.main(options.against, options.pairs, options.only))
    before = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    results: dict[str, Any] = {**before, "machine": machine()}
    for name, measure in parts(options.repeats).items():
        if not any(part in name.lower() for part in options.only.lower().split(",")):
            continue
        results[name] = measure()
        print(f"{name}: {json.dumps(results[name])}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    table = as_markdown(results)
    print(f"\n{table}")
    before_block, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before_block}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
