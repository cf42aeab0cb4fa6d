"""The bits that may not change: digests of weights and rows, kept per kind of machine in golden.json.

    python -m tests.golden                    compares with what is stored for this kind of machine
    python -m tests.golden --record [COMMIT]  stores what this tree, or that of a commit, gives here
    python -m tests.golden --against COMMIT   plays that commit and this tree here, and compares the two

What is played is in golden_runs.py. Exit code 1: something differs, and its name is printed.
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
    """What decides the last bits besides the code: CPU capability, torch build and processor model.

    The capability is that of torch's own kernels. MKL and oneDNN look at the processor itself and choose kernels and
    block sizes by its family, model and caches, so two processors of one capability may differ in bits.
    """
    import torch

    return f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, {_processor()}"


def _processor() -> str:
    """Vendor, family, model and name: a guest of a virtual machine may see a name that says little."""
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
    """The digests of all runs, played in processes that import fedal from `source`."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        command = [sys.executable, "-P", str(HERE / "golden_runs.py"), str(source), folder]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as player:
            try:
                _, said = player.communicate()
            finally:
                player.terminate()  # if this is left early: it ends what it has started
        if player.returncode:
            raise RuntimeError(f"golden_runs.py ended with {player.returncode}:\n{said[-4000:]}")
        return dict(json.loads((Path(folder) / "digests.json").read_text()))


def record_commit(commit: str) -> Digests:
    with worktree(commit) as folder:
        return record(folder / "src")


def differences(before: Digests, after: Digests) -> list[str]:
    """`NAME: weights` for everything that is not the same, or only in one of them."""
    return [
        f"{name}: {what}"
        for name in before | after
        for what in before.get(name, {}) | after.get(name, {})
        if before.get(name, {}).get(what) != after.get(name, {}).get(what)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--record", nargs="?", const="", metavar="COMMIT", help="store this machine's digests")
    which.add_argument("--against", metavar="COMMIT", help="compare with that commit, played on this machine")
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
        print(f"no record is stored for this kind of machine. Make one from a tree that is right: {RECORD}")
        return 1
    found = differences(before, record())
    print("\n".join(f"differs: {name}" for name in found) or f"{len(before)} runs: the same bits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
