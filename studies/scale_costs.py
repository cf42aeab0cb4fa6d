"""Measures what one node costs, for docs/scale.md: processor time of a client and of a server, and bytes of messages.

Transport is not measured again: the processor time of a deployed server per exchange is that of the table which
`python -m benchmarks.latency` writes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from benchmarks.workloads import LENET, federation

from fedal.config import Config
from fedal.data.split import Task
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.codec import encode
from fedal.durable import write_atomically
from fedal.engine.threads import thread_workers
from fedal.messages import Guidance, Message, Outputs
from fedal.methods.client import ClientLogic
from fedal.simulate.build import build_server
from studies.results_plan import ROOT

COSTS = ROOT / "docs" / "results" / "scale" / "costs.json"
LATENCY = ROOT / "docs" / "deployment.md"
BATCH, CLASSES, TAU = 32, 10, 5
COHORTS = (10, 100, 1000)
GROUPS = 32
FRAME_BYTES = 36  # of gRPC, HTTP/2 and TLS per message; docs/results/prototype compares them with a real link


@dataclass(frozen=True)
class Costs:
    """Of one node, per iteration: milliseconds of one core, and bytes."""

    machine: str
    client_ms: float  # a LeNet5: one local and one transfer step, with both references
    transport_ms: float  # at the server, for each client: TLS, gRPC, reading and checks
    server_ms: dict[str, dict[str, float]]  # method -> cohort -> its computation
    up_bytes: int  # of one upload of 32 x 10 logits and its framing
    down_bytes: int
    weight_bytes: int  # of a LeNet5, which FedAvg sends in each direction and round

    def server(self, method: str, cohort: float) -> float:
        """Milliseconds of the method's computation for any cohort; between measured ones, by a power of the cohort.

        Beyond them it grows with the square of the cohort for the exact discriminator, else linearly.
        """
        sizes, found = zip(*((float(size), ms) for size, ms in self.server_ms[method].items()), strict=True)
        if cohort > sizes[-1]:
            return float(found[-1] * (cohort / sizes[-1]) ** (2 if method == "fedal" else 1))
        return float(np.exp(np.interp(np.log(cohort), np.log(sizes), np.log(found))))


def read_costs(path: Path = COSTS) -> Costs:
    return Costs(**json.loads(path.read_text(encoding="utf-8")))


def write_costs(path: Path = COSTS) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    with thread_workers(1):
        costs = Costs(
            machine=f"one core, {capability}, torch {torch.__version__}",
            client_ms=_client(),
            transport_ms=_transport(LATENCY.read_text(encoding="utf-8")),
            server_ms={name: {str(n): _server(name, n) for n in COHORTS} for name in METHODS},
            up_bytes=_size(Outputs(_logits())),
            down_bytes=_size(Guidance(_logits(), _logits(), 10)),
            weight_bytes=_weights(),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(asdict(costs), indent=1) + "\n").encode())


METHODS: dict[str, dict[str, object]] = {
    "fedal": {"method": "fedal"},
    "fedal in groups": {"method": "fedal", "options": {"discriminator_groups": GROUPS}},
    "fedmd": {"method": "fedmd"},
}


def _logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, BATCH, CLASSES, generator=torch.Generator().manual_seed(0))


def _milliseconds(work: Callable[[], object], repeats: int = 9) -> float:
    """Median milliseconds of this thread's processor time, after a first call."""
    work()
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        times.append(1e3 * (time.thread_time() - began))
    return round(median(times), 3)


def _client() -> float:
    with federation(LENET, workers=1, stacked=False) as assembly:
        logic: ClientLogic = assembly.federation.players[0].logic  # type: ignore[attr-defined]
        reply, rounds = Guidance(_logits(), torch.zeros(BATCH, CLASSES), 10), iter(range(10**6))

        def one_round() -> None:
            client = logic.round(next(rounds))
            next(client)
            try:
                while True:
                    client.send(reply)
            except StopIteration:
                pass

        return round(_milliseconds(one_round) / LENET.tau, 3)


def _weights() -> int:
    with federation(LENET, workers=1, stacked=False) as assembly:
        learner = next(iter(assembly.learners.values()))
        return sum(value.nbytes for value in learner.weights().values())  # type: ignore[attr-defined]


def _server(name: str, cohort: int) -> float:
    config = Config(**{**METHODS[name], "dataset": "mnist", "clients": cohort, "tau": TAU})
    task = Task("mnist", LENET.input_shape, CLASSES)
    with federation(LENET, workers=1) as assembly:
        public = assembly.federation.server.public._samples  # type: ignore[union-attr]
    server = build_server(config, task, public, dict.fromkeys(config.client_names, "lenet5"), 0)
    up = {client: Outputs(f) for client, f in zip(config.client_names, _logits(cohort), strict=True)}

    def one_round() -> None:
        exchanges = server.round(0, config.client_names)
        next(exchanges)
        try:
            while True:
                exchanges.send(up)
        except StopIteration:
            pass

    return round(_milliseconds(one_round, 3 if cohort > 100 else 9) / TAU, 3)


def _size(message: Message) -> int:
    upload = pb.FromSite()
    upload.upload.round, upload.upload.exchange, upload.upload.batch = 1, 1, "0123456789abcdef"
    encode(message, upload.upload.payload)
    return len(upload.SerializeToString()) + FRAME_BYTES


def _transport(page: str) -> float:
    """Milliseconds at the server for each of the ten clients in the table of deployed exchanges."""
    row = re.search(r"\| fedal, no computation \|(?:[^|]*\|){4} ([\d.]+) ms \|", page)
    assert row is not None, "docs/deployment.md has no row for an exchange without computation"
    return round(float(row.group(1)) / 10, 3)
