"""The bits that must not change: digests of weights and rows, stored per kind of machine in golden.json.

    python -m tests.golden                    compares with the digests stored for this kind of machine
    python -m tests.golden --record [COMMIT]  stores the digests of this tree, or of a commit, on this machine
    python -m tests.golden --against COMMIT   runs that commit and this tree here, and compares the two

golden_runs.py defines the runs. Exit code 1: something differs, and its name is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.worktree import worktree

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
STORE = HERE / "golden.json"
RECORD = "python -m tests.golden --record"

Digests = dict[str, dict[str, str]]


def machine() -> str:
    """The factors besides the code that decide the last bits: CPU capability, torch build and processor model.

    The capability selects torch's own kernels. MKL and oneDNN choose kernels and block sizes by the processor's family,
    model and caches, so two processors with the same capability may differ in bits.
    """
    import torch

    return f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, {_processor()}"


def _processor() -> str:
    """Vendor, family, model and name, because the name alone may be generic in a virtual machine."""
    about = Path("/proc/cpuinfo")
    if not about.exists():
        return f"{platform.system()} {platform.machine()}"
    first = about.read_text().partition("\n\n")[0]
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    found = (facts.get(key, "") for key in ("vendor_id", "cpu family", "model", "model name"))
    return " ".join(filter(None, found)) or platform.machine()


def stored() -> dict[str, Digests]:
    return dict(json.loads(STORE.read_text())) if STORE.exists() else {}


def record(source: Path = SOURCE) -> Digests:
    """The digests of all runs, computed in processes that import fedal from `source`."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        command = [sys.executable, "-P", str(HERE / "golden_runs.py"), str(source), folder]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                _, errors = process.communicate()
            finally:
                process.terminate()  # on an early exit: it ends its own children
        if process.returncode:
            raise RuntimeError(f"golden_runs.py exited with {process.returncode}:\n{errors[-4000:]}")
        return dict(json.loads((Path(folder) / "digests.json").read_text()))


def record_commit(commit: str) -> Digests:
    with worktree(commit) as folder:
        return record(folder / "src")


def differences(before: Digests, after: Digests) -> list[str]:
    """`NAME: weights` for everything of the runs before that differs or is missing now."""
    return [
        f"{name}: {what}"
        for name in before
        for what in before[name] | after.get(name, {})
        if before[name].get(what) != after.get(name, {}).get(what)
    ]


def not_compared(before: Digests, after: Digests) -> str:
    """The runs that have nothing to be compared with, in words; empty if there are none."""
    names = [name for name in after if name not in before]
    return f"not compared, because there are no earlier digests: {', '.join(names)}" if names else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--record", nargs="?", const="", metavar="COMMIT", help="store this machine's digests")
    which.add_argument("--against", metavar="COMMIT", help="compare with that commit, run on this machine")
    options = parser.parse_args()
    key = machine()
    print(f"machine: {key}", flush=True)
    if options.record is not None:
        after = record_commit(options.record) if options.record else record()
        STORE.write_text(json.dumps(stored() | {key: after}, indent=1, sort_keys=True) + "\n")
        print(f"{len(after)} runs recorded in {STORE.name}")
        return 0
    if options.against:
        before = record_commit(options.against)
    elif key in stored():
        before = stored()[key]
    else:
        print(f"no digests are stored for this kind of machine. Record them from a correct tree: {RECORD}")
        return 1
    after = record()
    found = differences(before, after)
    print("\n".join(f"differs: {name}" for name in found) or f"{len(before)} runs: the same bits")
    print(not_compared(before, after), end="\n" if not_compared(before, after) else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
