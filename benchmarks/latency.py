"""The cost of one synchronous exchange: fedal's deployment and bare gRPC streams, with ten client processes each.

A bare stream carries opaque bytes, or logits in fedal's messages. Both sides convert logits to and from tensors, but
without checks, rounds or identities. Any exchange of logits costs at least that much.

`python -m benchmarks.latency` keeps the processes of all variants alive and runs blocks of exchanges in turn, so that
other load on the machine affects all alike. An exchange lasts from the arrival of the last upload to the next such
moment: replies out, ten clients answer, uploads in. fedal's clients have a learner that computes nothing. The measured
time is transport, checks, bookkeeping and the method's own computation on both sides; one variant has no computation.

`--against COMMIT` measures exchanges of three deployed sites in that commit and in this tree, alternately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks import against
from benchmarks.bare_streams import BATCH, CLASSES, CLIENTS, Blank, Logits, Traffic  # imports fedal before gRPC
from fedal.machine import available_cores

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "deployment.md"
BEGIN, END = "<!-- latency: written by python -m benchmarks.latency -->", "<!-- end of latency -->"
NAMES = tuple(f"client-{index:02}" for index in range(CLIENTS))
SPAWN = multiprocessing.get_context("spawn")  # gRPC does not survive a fork


@dataclass(frozen=True)
class Variant:
    """One server and ten clients; a bare stream has `traffic`, fedal a `method`."""

    name: str
    serve: Callable[[Stage, Variant, Connection], None]
    join: Callable[[Stage, Variant, str], None]
    secure: bool = True
    method: str = ""
    traffic: Callable[[], Traffic] | None = None


@dataclass(frozen=True)
class Stage:
    """Where a variant runs: its own folder and port, and certificates that all share."""

    certificates: Path
    folder: Path
    port: int
    block: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


# the bare streams


def serve_bare(stage: Stage, variant: Variant, turn: Connection) -> None:
    asyncio.run(_serve_bare(stage, variant, turn))


async def _serve_bare(stage: Stage, variant: Variant, turn: Connection) -> None:
    import grpc

    from fedal.deploy.channel import server_credentials
    from fedal.deploy.pki.authority import read_pems

    assert variant.traffic is not None
    traffic = variant.traffic()
    arrived: list[asyncio.Future[None]] = []
    times: list[float] = []

    async def gather() -> None:
        """Returns when all clients have uploaded; between blocks it waits for the next turn."""
        arrived.append(asyncio.get_running_loop().create_future())
        mine = arrived[-1]
        if len(arrived) == CLIENTS:
            if times:
                times.append(time.perf_counter())
            if len(times) == stage.block + 1:
                turn.send(times)
                times.clear()
            if not times:
                turn.recv()
                times.append(time.perf_counter())
            for other in arrived:
                other.set_result(None)
            arrived.clear()
        await mine

    async def exchange(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            content = traffic.read(message)
            await gather()
            yield traffic.reply(content)

    server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 10_000)])
    handler = grpc.stream_stream_rpc_method_handler(exchange, None, None)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Exchange": handler}),))
    if variant.secure:
        server.add_secure_port(stage.address, server_credentials(read_pems(stage.certificates / "server")))
    else:
        server.add_insecure_port(stage.address)
    await server.start()
    await server.wait_for_termination()


def join_bare(stage: Stage, variant: Variant, name: str) -> None:
    import grpc

    from fedal.deploy.channel import open_channel
    from fedal.deploy.pki.authority import read_invitation

    assert variant.traffic is not None
    traffic = variant.traffic()
    invitation = read_invitation(stage.certificates / name) if variant.secure else None
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with open_channel(stage.address, invitation) as channel, suppress(grpc.RpcError):
        outbox.put(traffic.upload())
        call = channel.stream_stream("/bare/Exchange", None, None)
        for message in call(iter(outbox.get, None), wait_for_ready=True):
            traffic.read_reply(message)
            outbox.put(traffic.upload())


# fedal


def serve_fedal(stage: Stage, variant: Variant, turn: Connection) -> None:
    import torch

    import benchmarks.echo  # noqa: F401 - known by its name from here on
    from fedal.config import Config
    from fedal.data.split import Task
    from fedal.deploy.plan import ServerPlan
    from fedal.deploy.service import Service
    from fedal.deploy.settings import Deployment
    from fedal.methods.server import Uploads

    class Timed(Service):
        """A server that runs a round in its turn, and reports when the uploads of each exchange had arrived."""

        def _run_round(self, restore: bool) -> None:
            turn.recv()
            self._times: list[float] = []
            super()._run_round(restore)
            turn.send(self._times)

        def _refuse_small_cohort(self, uploads: Uploads) -> None:
            self._times.append(time.perf_counter())
            super()._refuse_small_cohort(uploads)

    torch.set_num_threads(1)
    config = Config(
        method=variant.method, clients=CLIENTS, batch_size=BATCH, tau=stage.block + 1, rounds=10_000,
        checkpoint_every=10**9, eval_every=10**9,
    )  # fmt: skip
    deployment = Deployment(
        federation="bench", listen=stage.address, certificates=str(stage.certificates / "server"),
        folder=str(stage.folder / "server"),
    )  # fmt: skip
    public = np.zeros((300, 1, 8, 8), np.float32)
    plan = ServerPlan(config, deployment, Task("own", (1, 8, 8), CLASSES), public)
    Timed(plan, log=lambda event, **fields: None).run()


class Mute:
    """A learner that computes nothing and always returns the same outputs."""

    def __init__(self, name: str) -> None:
        import torch

        self._answer = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(NAMES.index(name)))

    def logits(self, x: Any, mode: str = "train") -> Any:
        return self._answer if len(x) == BATCH else self._answer[: len(x)]

    predict = __call__ = logits

    def learn(self, *dlogits: Any) -> None: ...

    def forget(self) -> None: ...

    def frozen(self, mode: str = "train") -> Mute:
        return self

    def state_dict(self) -> dict[str, Any]:
        return {"model": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def join_fedal(stage: Stage, variant: Variant, name: str) -> None:
    import benchmarks.echo  # noqa: F401 - known by its name from here on
    from fedal.deploy.entering import SitePlan
    from fedal.deploy.pki.authority import read_invitation
    from fedal.deploy.site import Site

    data = stage.folder / f"{name}.npz"
    np.savez(data, x=np.zeros((100, 1, 8, 8), np.float32), y=np.arange(100) % CLASSES)
    plan = SitePlan(
        stage.address, name, data, stage.folder / name, invitation=read_invitation(stage.certificates / name),
        custom_model=Mute(name),
    )  # fmt: skip
    Site(plan, lambda text: None).run()


# the benchmark

VARIANTS = (
    Variant("bare stream of bytes, plain text", serve_bare, join_bare, secure=False, traffic=Blank),
    Variant("bare stream of bytes", serve_bare, join_bare, traffic=Blank),
    Variant("bare stream of logits", serve_bare, join_bare, traffic=Logits),
    Variant("fedal, no computation", serve_fedal, join_fedal, method="echo"),
    Variant("fedal, FedMD", serve_fedal, join_fedal, method="fedmd"),
    Variant("fedal, FedAL", serve_fedal, join_fedal, method="fedal"),
)


@dataclass
class Timings:
    """Milliseconds: of each exchange, and of total CPU time at the server and at all clients."""

    times: list[float] = field(default_factory=list)
    server_ms: float = 0.0
    clients_ms: float = 0.0


def benchmark(blocks: int, block: int) -> dict[str, Timings]:
    from fedal.deploy.pki import authority as certs

    timings = {variant.name: Timings() for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        certificates = Path(folder) / "certs"
        certs.init(certificates, "bench")
        certs.issue_server(certificates, ["127.0.0.1"])
        for name in NAMES:
            certs.issue_client(certificates, name, None)
        stages = {c.name: Stage(certificates, Path(folder) / c.name, _free_port(), block) for c in VARIANTS}
        with _started(stages) as (turns, processes):
            sentinels = [process.sentinel for group in processes.values() for process in group]
            for number in range(blocks + 1):
                for name, turn in turns.items():
                    server, *clients = processes[name]
                    before = _processor_ms([server]), _processor_ms(clients)
                    turn.send(None)
                    wait([turn, *sentinels])
                    if not turn.poll():
                        raise RuntimeError(f"a process of {name} or of another variant has died")
                    arrivals = turn.recv()
                    if number:  # the first block warms up
                        found = timings[name]
                        found.times += [1e3 * (last - first) for first, last in pairwise(arrivals)]
                        found.server_ms += _processor_ms([server]) - before[0]
                        found.clients_ms += _processor_ms(clients) - before[1]
    return timings


@contextmanager
def _started(stages: dict[str, Stage]) -> Iterator[tuple[dict[str, Connection], dict[str, list[BaseProcess]]]]:
    groups: dict[str, list[BaseProcess]] = {}
    turns: dict[str, Connection] = {}
    for variant in VARIANTS:
        stage = stages[variant.name]
        stage.folder.mkdir()
        turns[variant.name], theirs = SPAWN.Pipe()
        groups[variant.name] = [
            SPAWN.Process(target=variant.serve, args=(stage, variant, theirs)),
            *(SPAWN.Process(target=variant.join, args=(stage, variant, name)) for name in NAMES),
        ]
    processes = [process for group in groups.values() for process in group]
    try:
        for process in processes:
            process.start()
        yield turns, groups
    finally:
        for process in processes:
            process.kill()
            process.join()


def _processor_ms(processes: list[BaseProcess]) -> float:
    """The CPU time that these processes have used so far."""
    ticks = 0
    for process in processes:
        user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return 1e3 * ticks / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_markdown(timings: dict[str, Timings]) -> str:
    of_bytes, of_logits = (median(timings[f"bare stream of {what}"].times) for what in ("bytes", "logits"))
    lines = [
        f"{available_cores()} cores, load average {os.getloadavg()[1]:.0f}; {CLIENTS} client processes, "
        f"{BATCH} x {CLASSES} logits up, the same or twice that down; "
        f"{len(timings['fedal, FedAL'].times)} exchanges each, in interleaved blocks.",
        "",
        "| exchange | median | 10% to 90% | vs bytes | vs logits | CPU time at the server | at each client |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in timings.items():
        middle, tenths, count = median(found.times), quantiles(found.times, n=10), len(found.times)
        lines.append(
            f"| {name} | {middle:.1f} ms | {tenths[0]:.1f} to {tenths[-1]:.1f} ms | "
            f"{middle / of_bytes:.2f} | {middle / of_logits:.2f} | "
            f"{found.server_ms / count:.1f} ms | {found.clients_ms / CLIENTS / count:.2f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block", type=int, default=50, help="exchanges per block")
    parser.add_argument(
        "--against", metavar="COMMIT", help="time deployed exchanges of that commit and this tree instead"
    )
    parser.add_argument("--pairs", type=int, default=7, help="with --against: processes of each tree")
    options = parser.parse_args()
    if options.against:
        raise SystemExit(against.main(options.against, options.pairs, only="exchange"))
    timings = benchmark(options.blocks, options.block)
    table = as_markdown(timings)
    print(table)
    medians = {name: round(median(found.times), 3) for name, found in timings.items()}
    (HERE / "latency.json").write_text(json.dumps(medians, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
