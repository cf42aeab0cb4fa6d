"""The measurements of `--against`, in a process that imports fedal from any tree. Uses only `fedal.run` and the CLI.

    PYTHONPATH=TREE/src python -P benchmarks/timed_runs.py TREE/src

reads one measurement's name per line and prints its milliseconds.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

NEVER = 10**6
QUIET: dict[str, Any] = dict(eval_every=NEVER, checkpoint_every=NEVER)
COMMAND = [sys.executable, "-P", "-c", "from fedal.cli import main; main()"]


def per_iteration(folder: Path, rounds: int, images: tuple[int, ...] | None = None, **settings: Any) -> float:
    """Milliseconds per iteration: a long run minus a one-round run, which removes start-up and the final work."""
    run_once = partial(_run, folder, images, **{**QUIET, **settings})
    run_once(rounds=1)  # warms up
    return (run_once(rounds=1 + rounds) - run_once(rounds=1)) / (rounds * 5)


def per_checkpoint(folder: Path, rounds: int, images: tuple[int, ...], **settings: Any) -> float:
    """Milliseconds per checkpoint: a run that saves every round minus a run that saves only at its end."""
    run_once = partial(_run, folder, images, rounds=1 + rounds, tau=1, batch_size=2, **{**QUIET, **settings})
    run_once()
    return (run_once(checkpoint_every=1) - run_once()) / rounds


def start_up(folder: Path) -> float:
    """Milliseconds of a whole `fedal run` on digits with a single iteration."""
    began = time.perf_counter()
    words = ["run", "--quiet", "--iterations", "1", "--set", "tau=1", "--out", str(folder / "run")]
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - began)


DEPLOYED = """
method = "fedal"
clients = 3
models = "mlp-small"
rounds = 200
batch_size = 8
eval_every = 250
checkpoint_every = 1000000

[deployment]
listen = "ADDRESS"
folder = "server"
"""


def deployed_exchange(folder: Path) -> float:
    """Milliseconds per exchange, by the times in the first and last row of the server's record."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "federation.toml").write_text(DEPLOYED.replace("ADDRESS", address))
    start = partial(subprocess.Popen, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    exporting = start([*COMMAND, "export-sites", "--config", "federation.toml", "--out", "sites"])
    assert exporting.wait() == 0
    processes = [start([*COMMAND, "serve", "--config", "federation.toml", "--insecure"])]
    for path in sorted((folder / "sites").glob("*.npz")):
        words = ["--server", address, "--name", path.stem, "--data", f"sites/{path.name}", "--model", "mlp-small"]
        processes.append(start([*COMMAND, "join", *words, "--insecure"]))
    try:
        assert [process.wait(300) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    rows = [json.loads(line) for line in (folder / "server/metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    return 1e3 * float(last["seconds"] - first["seconds"]) / int(last["iteration"] - first["iteration"])


def own_models(clients: int, **_: Any) -> dict[str, Any]:
    """A model for every client that cannot be stacked: its forward is not a chain of layers."""
    from torch import Tensor, nn

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.flatten(1)).relu()
            logits: Tensor = self.last(h + self.second(h).relu())
            return logits

    return {f"client-{n:02}": Skip() for n in range(clients)}


def _run(folder: Path, images: tuple[int, ...] | None, own: bool = False, **settings: Any) -> float:
    """Milliseconds of a whole run, on random images of shape `images`, or on digits if it is None."""
    import fedal
    import fedal.data

    data = None
    if images is not None:
        import numpy as np

        generator = np.random.Generator(np.random.Philox(key=1))
        x = generator.standard_normal((1000 + 100 * int(settings["clients"]), *images), dtype=np.float32)
        y = np.arange(len(x)) % 10
        data = fedal.data.from_tensors(x, y, test_x=x[:20], test_y=y[:20])
    config = fedal.Config(partition="iid", **settings)
    with tempfile.TemporaryDirectory(dir=folder) as out:
        began = time.perf_counter()
        fedal.run(config, Path(out) / "run", data=data, models=own_models(**settings) if own else None)
        return 1e3 * (time.perf_counter() - began)


IN_PROCESS: dict[str, Callable[[Path], float]] = {
    "FedAL, 10 LeNet5, iteration": partial(
        per_iteration, rounds=8, images=(1, 28, 28), method="fedal", models="lenet5", clients=10
    ),
    "FedAL, 10 small digits clients, iteration": partial(per_iteration, rounds=12, method="fedal", clients=10),
    "FedAL, 10 own models that cannot be stacked, iteration": partial(
        per_iteration, rounds=12, method="fedal", clients=10, own=True
    ),
    "FedAL, 9 mlp-small and one cnn-small, iteration": partial(
        per_iteration, rounds=12, method="fedal", clients=({"model": "mlp-small"},) * 9 + ({"model": "cnn-small"},)
    ),
    "FedAL, 9 LeNet5 and one cnn-small, iteration": partial(
        per_iteration,
        rounds=4,
        images=(1, 28, 28),
        method="fedal",
        clients=({"model": "lenet5"},) * 9 + ({"model": "cnn-small"},),
    ),
    "FedMD, 4 wrn-10-1, iteration": partial(
        per_iteration, rounds=2, images=(3, 32, 32), method="fedmd", models="wrn-10-1", clients=4
    ),
    "FedMD, 50 mlp-small, iteration": partial(
        per_iteration, rounds=12, method="fedmd", models="mlp-small", clients=50, batch_size=8
    ),
    "local, 20 LeNet5, checkpoint": partial(
        per_checkpoint, rounds=12, images=(1, 28, 28), method="local", models="lenet5", clients=20
    ),
}
SLOW_PATHS = tuple(name for name in IN_PROCESS if "own models" in name or "one cnn-small" in name)
"""What runs slowly by accident: a model of one's own that cannot be stacked, one client of another kind."""
OUT_OF_PROCESS: dict[str, Callable[[Path], float]] = {
    "fedal run on digits, first iteration": start_up,
    "FedAL, 3 deployed sites, exchange": deployed_exchange,
}


def main() -> None:
    source = Path(sys.argv[1]).resolve()
    import fedal

    assert Path(fedal.__file__).is_relative_to(source), f"imported {fedal.__file__}, expected fedal from {source}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that cleanup runs
    measurements = IN_PROCESS | OUT_OF_PROCESS
    for line in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="timed-") as folder:
            ms = measurements[line.strip()](Path(folder))
        print(json.dumps(ms), flush=True)


if __name__ == "__main__":
    main()
