"""The paper's prototype at small scale: a server and ten client processes on a WiFi-like link, MNIST, LeNet5.

    python -m benchmarks.wifi [--seeds 1] [--iterations 300] [--out docs/results/prototype]

Measures accuracy against wall-clock time for FedAL, FedMD and FedAvg, and compares the bytes on the link with the byte
meter's count. Methods and seeds already in the results file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

from benchmarks.shaped_link import ShapedLink
from fedal.data.streams import Samples
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.codec import encode
from fedal.deploy.pki import authority as certs
from fedal.deploy.plan import ServerPlan, plan_federation
from fedal.deploy.settings import load_federation
from fedal.learners.torch_learner import TorchLearner
from fedal.messages import Message, Weights
from fedal.precision import dtype_of
from fedal.simulate.build import axis_lengths, build_learner
from fedal.simulate.export import export_sites

METHODS = ("fedal", "fedmd", "fedavg")
BITS_PER_S, DELAY_S = 20e6, 0.005
TEST_SAMPLES = 1000
PORT = 7453
FEDAL = str(Path(sys.executable).with_name("fedal"))
FRAME_BYTES = 5 + 9 + 22  # per message: gRPC prefix, HTTP/2 frame header, TLS record header, type and tag
PART_BYTES = 16384  # a long message is split into frames and records of this size


def prepare(folder: Path, method: str, seed: int, iterations: int) -> ServerPlan:
    """Writes config, certificates and data, as an operator would."""
    table = {"listen": f"127.0.0.1:{PORT}", "certificates": str(folder / "certs/server"), "deadline_s": 300.0}
    run = {"method": method, "preset": "paper", "dataset": "mnist", "models": "lenet5", "clients": 10, "alpha": 1.0}
    run |= {"partition": "dirichlet-client-k-balanced", "iterations": iterations, "eval_every": 30, "seed": seed}
    config = folder / "federation.toml"
    config.write_text(tomli_w.dumps({**run, "deployment": {**table, "folder": str(folder / "server")}}))
    plan = plan_federation(*load_federation(config))
    certs.init(folder / "certs", "fedal")
    certs.issue_server(folder / "certs", ["127.0.0.1"])
    for path in export_sites(plan.config, folder / "sites"):
        certs.issue_client(folder / "certs", path.stem, plan.public_sha256, contract=plan.contract)
        with np.load(path) as data:
            arrays = dict(data)
        for name in ("test_x", "test_y"):
            arrays[name] = arrays[name][:TEST_SAMPLES]
        np.savez(path, **arrays)
    return plan


@contextmanager
def processes(folder: Path, sites: tuple[str, ...], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the server, and every site on the other side of the link."""
    started = [_started(folder / "server.log", ["serve", "--config", str(folder / "federation.toml")])]
    try:
        for site in sites:
            words = ["join", "--server", f"127.0.0.1:{port}", "--name", site, "--share-metrics", "--model", "lenet5"]
            words += ["--allow", "parameters,architecture"]  # fedavg sends them
            words += ["--invitation", str(folder / "certs" / site), "--state", str(folder / f"{site}-state")]
            started.append(_started(folder / f"{site}.log", [*words, "--data", str(folder / f"sites/{site}.npz")]))
        yield started[0]
    finally:
        for process in started:
            process.kill()
            process.wait()


def _started(log: Path, words: list[str]) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        return subprocess.Popen([FEDAL, *words], stdout=file, stderr=file)


def measure(method: str, seed: int, iterations: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = prepare(folder, method, seed, iterations)
        link = ShapedLink(PORT, BITS_PER_S, DELAY_S)
        began, rows = 0.0, list[dict[str, Any]]()
        with processes(folder, plan.config.client_names, link.port) as server:
            while (ended := server.poll()) is None or not rows or not rows[-1]["final"]:
                if ended:
                    raise SystemExit((folder / "server.log").read_text()[-2000:])
                time.sleep(0.05)
                if not began and (folder / "server.log").read_text().count('"joined"') >= 10:
                    began = time.monotonic()
                seen = {"link_up": link.up.count, "link_down": link.down.count}
                for line in new_lines(folder / "server/metrics.jsonl", len(rows)):
                    rows.append({**json.loads(line), **seen, "elapsed_s": time.monotonic() - began})
        link.close()
    return {
        "method": method,
        "seed": seed,
        "tau": plan.config.tau,
        "load": os.getloadavg()[0],
        "curve": [point(row, len(plan.config.client_names)) for row in rows],
        "bytes": compare_bytes(plan, rows[0], rows[-1]),
    }


def new_lines(record: Path, known: int) -> list[str]:
    return record.read_text().splitlines()[known:] if record.exists() else []


def point(row: dict[str, Any], clients: int) -> dict[str, float]:
    """One point of a curve from a row of the server's record."""
    return {
        "seconds": round(row["elapsed_s"], 2),
        "iteration": row["iteration"],
        "accuracy": row["own_test_accuracy"],
        "megabytes_per_client": (row["up_bytes"] + row["down_bytes"]) / 1e6 / clients,
    }


def compare_bytes(plan: ServerPlan, first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """The link's bytes between the first and the last evaluation, and the prediction from meter and framing."""
    found: dict[str, Any] = {}
    rounds = last["round"] - first["round"]
    controls = rounds * len(plan.config.client_names)
    samples = {"up": pb.FromSite(done=pb.Done(incarnation=1 << 47, round=50, exchange=5, saved=True)),
               "down": pb.FromServer(begin=pb.Begin(incarnation=1 << 47, round=50, save=True))}  # fmt: skip
    for way, control in samples.items():
        meter = last[f"{way}_bytes"] - first[f"{way}_bytes"]
        payload, size = message_bytes(plan, way)
        framing = meter // payload * (size + _frames(size) - payload)
        framing += controls * (control.ByteSize() + _frames(control.ByteSize()))
        link = last[f"link_{way}"] - first[f"link_{way}"]
        found[way] = {"meter": meter, "framing": framing, "link": link, "ratio": round(link / (meter + framing), 4)}
    return found


def message_bytes(plan: ServerPlan, way: str) -> tuple[int, int]:
    """Payload bytes as the meter counts them, and protobuf bytes, of the method's message in this direction."""
    config = plan.config
    method, dtype = config.method_object(), dtype_of(config.precision)
    kind: type[Message] = (method.up if way == "up" else method.down)[0]
    if kind is Weights:
        learner = build_learner(config, plan.task, "client-00", "lenet5", Samples(plan.public_x, dtype))
        assert isinstance(learner, TorchLearner)
        message: Message = Weights(learner.weights(), 6000, 10)
    else:
        sizes = axis_lengths(config, plan.task, 0)
        tensors = {name: torch.zeros([sizes[axis] for axis in axes], dtype=dtype) for name, axes in kind.layout.items()}
        counts = {field.name: 10 for field in fields(kind) if field.name not in tensors}
        message = kind(**tensors, **counts)
    where: dict[str, Any] = dict(incarnation=1 << 47, round=50, exchange=3, payload=encode(message))
    batch = "0" * 16 if message.about_batch else ""
    upload, reply = pb.FromSite(upload=pb.Upload(**where, batch=batch)), pb.FromServer(reply=pb.Reply(**where))
    return sum(tensor.nbytes for tensor in message.tensors().values()), (upload if way == "up" else reply).ByteSize()


def _frames(size: int) -> int:
    return FRAME_BYTES + size // PART_BYTES * (FRAME_BYTES - 5)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    names, colours = {"fedal": "FedAL", "fedmd": "FedMD", "fedavg": "FedAvg"}, pyplot.get_cmap("tab10")
    for number, method in enumerate(METHODS):
        for index, result in enumerate(r for r in results if r["method"] == method):
            style = dict(color=colours(number), marker="os^"[number], ms=4, label=names[method] if index == 0 else None)
            accuracy = [p["accuracy"] for p in result["curve"]]
            left.plot([p["seconds"] for p in result["curve"]], accuracy, **style)
            right.plot([p["megabytes_per_client"] for p in result["curve"]], accuracy, **style)
    left.set(xlabel="wall-clock time since the last site joined (s)", ylabel="test accuracy, mean over 10 clients")
    right.set(xlabel="payload per client, up and down (MB)", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("docs/results/prototype"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for seed in range(options.seeds):
        for method in METHODS:
            if any((found["method"], found["seed"]) == (method, seed) for found in results):
                continue
            results.append(measure(method, seed, options.iterations))
            file.write_text(json.dumps(results, indent=1) + "\n")
            print(method, seed, results[-1]["curve"][-1], results[-1]["bytes"], flush=True)
    draw(results, options.out / "accuracy-over-time.png")


if __name__ == "__main__":
    main()
