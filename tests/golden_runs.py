"""Runs the golden runs and writes their digests. Started as a script, with any tree's src in PYTHONPATH.

    PYTHONPATH=TREE/src python -P tests/golden_runs.py TREE/src FOLDER

writes digests.json into FOLDER, next to the runs. It uses only interfaces that survive restructuring: `fedal.Config`,
`fedal.run`, `fedal.resume`, `fedal.data.from_tensors`, the command line, and the files in run folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

METHODS = (
    "local", "fedmd", "fedmd-lf", "fedal", "fedproto", "fedproto-public", "fd", "hfd", "fedavg", "feddf", "feddf-al",
    "fccl", "fccl+", "perfed-ckt", "cfd", "mhat", "fedgkt",
)  # fmt: skip
LATER_METHODS = (  # not recorded for every kind of machine, and unknown to older trees
    "fedlsd", "fedntd", "fedgkd", "pfedsd", "kim-2024", "fedrad", "fedssd", "fedreg", "flashback", "fedbr", "fedcurv",
    "feddistill+", "fedgen", "fedftg", "dfrd", "fedzkt", "fedcvae", "ds-fl", "cronus", "fedgems", "expguard", "kt-pfl",
    "scarlet", "selective-fd", "fedaux", "uwa", "fedkt", "fedeven", "fedlift",
)  # fmt: skip
LATER = (*LATER_METHODS, "fedal, stacked")
SMALL: dict[str, Any] = dict(
    dataset="digits", clients=4, rounds=4, tau=2, batch_size=16, seed=3, workers=2,
    eval_every=4, eval_samples=100, eval_after_local=True, checkpoint_every=1000,
)  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    **{method: dict(method=method, models="same") for method in (*METHODS, *LATER_METHODS)},
    "fedal, mixed models": dict(method="fedal"),
    "fedmd, mixed models": dict(method="fedmd"),
    "fedal, sgd": dict(method="fedal", optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=1e-3),
    "fedal, fp64": dict(method="fedal", precision="fp64"),
    "fedal, bf16": dict(method="fedal", precision="bf16"),
    "fedal, stacked": dict(
        method="fedal", models="mlp-small", stacked=True
    ),  # may differ from single clients, not in time
    "fedal, instruments": dict(method="fedal", instruments=("forgetting", "zeta", "gradients")),
}
ON_RAY = {"fedmd, ray": dict(method="fedmd", engine="ray"), "fedal, ray": dict(method="fedal", engine="ray")}
IMAGES: dict[str, Any] = dict(SMALL, method="fedal", models="lenet5", clients=7, batch_size=8)  # a stack of 5, one of 2
KILLED: dict[str, Any] = dict(SMALL, method="fedal", rounds=60, checkpoint_every=1)
SITES = ("client-00", "client-01", "client-02")
DEPLOYED = """
method = "fedal"
clients = 3
rounds = 4
batch_size = 8
seed = 1
checkpoint_every = 2
eval_every = 2
options = { tau = 2 }

[deployment]
listen = "127.0.0.1:PORT"
folder = "server"
"""
OF_A_SERVER = ("round", "iteration", "phase", "final", "up_bytes", "down_bytes", "participants")
OBSERVED = ("discriminator_accuracy", "adversarial_grad_norm")
PATIENCE_S = 240.0

Digests = dict[str, dict[str, str]]


# digests


def weights_digest(files: Iterable[Path]) -> str:
    """sha256 of all tensors, ordered by file name and tensor name: name, dtype, shape, bytes.

    The format is parsed by hand: other content of a file, and the order of its bytes, do not affect the weights.
    """
    sha = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        header.pop("__metadata__", None)
        for name, about in sorted(header.items()):
            begin, end = about["data_offsets"]
            sha.update(f"{path.name} {name} {about['dtype']} {about['shape']}\n".encode())
            sha.update(content[start + begin : start + end])
    return sha.hexdigest()


def rows_digest(rows: Iterable[dict[str, Any]]) -> str:
    """sha256 of rows without times, independent of the order of keys."""
    sha = hashlib.sha256()
    for row in rows:
        kept = {key: value for key, value in row.items() if key != "seconds"}
        sha.update(json.dumps(kept, sort_keys=True).encode() + b"\n")
    return sha.hexdigest()


def run_digests(folder: Path) -> dict[str, str]:
    """The digests of a complete run."""
    assert (folder / "summary.json").exists(), f"{folder} is not complete"
    return {
        "weights": weights_digest((folder / "models").glob("*.safetensors")),
        "metrics": rows_digest(_rows(folder / "metrics.jsonl")),
        "clients": rows_digest(_rows(folder / "clients.jsonl")),
    }


def _deployed_digests(folder: Path) -> dict[str, str]:
    """Digests of the sites' weights, and of the columns that the server's rows share with those of runs."""
    rows = [{key: row[key] for key in (*OF_A_SERVER, *OBSERVED)} for row in _rows(folder / "server/metrics.jsonl")]
    for row in rows:
        if not isinstance(row["participants"], int):
            row["participants"] = len(row["participants"])
    return {
        "weights": weights_digest(folder / f"{site}.safetensors" for site in SITES),
        "metrics": rows_digest(rows),
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# processes, forked from this one (torch imported, nothing computed yet), so that they start at once


class Child:
    """A function in its own process; its output goes to `log`."""

    def __init__(self, log: Path, work: Callable[[], object]) -> None:
        self._log = log
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                work()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        self._code: int | None = None

    def ended(self) -> bool:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self.ended() and time.monotonic() < end:
            time.sleep(0.01)
        if self._code != 0:
            self.kill()
            raise RuntimeError(f"{self._log.name} exited with {self._code}:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _command(folder: Path, log: str, *words: str) -> Child:
    def work() -> None:
        from fedal.cli import main

        os.chdir(folder)
        sys.argv = ["fedal", *words]
        main()

    return Child(folder / log, work)


class Deployment:
    """Three sites and a server on loopback, all with the command line."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        (folder / "federation.toml").write_text(DEPLOYED.replace("PORT", port))
        _command(folder, "export.log", "export-sites", "--config", "federation.toml", "--out", "sites").wait()
        self.children = [_command(folder, "server.log", "serve", "--config", "federation.toml", "--insecure")]
        for site in SITES:
            words = ["join", "--server", f"127.0.0.1:{port}", "--name", site, "--data", f"sites/{site}.npz"]
            words += ["--save", f"{site}.safetensors", "--insecure"]
            self.children.append(_command(folder, f"{site}.log", *words))

    def digests(self) -> dict[str, str]:
        for child in self.children:
            child.wait()
        return _deployed_digests(self._folder)


def _kill_after_the_first_checkpoint(folder: Path) -> None:
    import fedal

    child = Child(folder.with_suffix(".log"), lambda: fedal.run(fedal.Config(**KILLED), folder))
    end = time.monotonic() + PATIENCE_S
    try:
        while not child.ended() and time.monotonic() < end and not list(folder.glob("checkpoints/*.json")):
            time.sleep(0.001)
    finally:
        child.kill()
    log = folder.with_suffix(".log").read_text()
    assert list(folder.glob("checkpoints/*.json")), f"no checkpoint was written: {log[-2000:]}"
    assert not (folder / "summary.json").exists(), "the run ended before it could be killed"


# all runs


def run_all(folder: Path) -> Digests:
    import fedal
    import fedal.data

    deployment = Deployment(folder / "deployment")
    try:
        _kill_after_the_first_checkpoint(folder / "killed")
        known = {name: settings for name, settings in RUNS.items() if settings["method"] in fedal.methods.names()}
        digests = {name: _digests_of(folder / name, settings) for name, settings in known.items()}
        x, y = _images()
        fedal.run(fedal.Config(**IMAGES), folder / "images", data=fedal.data.from_tensors(x, y))
        assert "stacked = true" in (folder / "images/config.toml").read_text()
        digests["fedal, LeNet5 stacked"] = run_digests(folder / "images")
        fedal.resume(folder / "killed")
        digests["fedal, killed and resumed"] = run_digests(folder / "killed")
        digests["fedal, deployed"] = deployment.digests()
        with _one_ray():
            digests |= {name: _digests_of(folder / name, settings) for name, settings in ON_RAY.items()}
    finally:
        for child in deployment.children:
            child.kill()
    return digests


def _digests_of(out: Path, settings: dict[str, Any]) -> dict[str, str]:
    import fedal

    fedal.run(fedal.Config(**{**SMALL, **settings}), out)
    return run_digests(out)


@contextmanager
def _one_ray() -> Iterator[None]:
    """Starts Ray once, as a run would, for several runs: runs use an existing Ray in their process."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listens on loopback only
    import ray

    ray.init("local", num_cpus=SMALL["workers"], include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _images() -> tuple[Any, Any]:
    """Noise around one pattern per class, 28x28."""
    import numpy as np

    generator = np.random.Generator(np.random.Philox(key=5))
    patterns = generator.standard_normal((10, 1, 28, 28), dtype=np.float32)
    y = np.arange(1500) % 10
    return patterns[y] + generator.standard_normal((len(y), 1, 28, 28), dtype=np.float32), y


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that cleanup ends the children
    source, folder = (Path(word).resolve() for word in sys.argv[1:])
    import sklearn.datasets  # noqa: F401 - before the forks, which all use it
    import torch._dynamo  # noqa: F401

    import fedal

    assert Path(fedal.__file__).is_relative_to(source), f"imported {fedal.__file__}, expected fedal from {source}"
    assert fedal.run and fedal.Config and fedal.resume  # imported now
    (folder / "digests.json").write_text(json.dumps(run_all(folder)))


if __name__ == "__main__":
    main()
