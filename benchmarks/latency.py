"""What one synchronous exchange costs: fedal's deployment against bare gRPC streams, with ten client processes each.

A bare stream carries bytes that nobody looks at, or logits: read into a tensor and written from one on both sides, in
fedal's messages, without a check, a round or an identity. Whoever exchanges logits pays at least that.

`python -m benchmarks.latency` keeps the processes of all contenders alive side by side and lets them play blocks of
exchanges in turn, so that whatever else the machine does hits all alike. An exchange is the time from one moment at
which all uploads are there to the next: replies out, ten clients answer, uploads in. fedal's clients have a learner
that computes nothing, so its time is that of transport, checks, bookkeeping and the method's mathematics on both sides,
which one contender is without.
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

from benchmarks.bare_streams import BATCH, CLASSES, CLIENTS, Blank, Logits, Speech  # and with it fedal, before gRPC
from fedal.machine import available_cores

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "deployment.md"
BEGIN, END = "<!-- latency: written by python -m benchmarks.latency -->", "<!-- end of latency -->"
NAMES = tuple(f"client-{index:02}" for index in range(CLIENTS))
SPAWN = multiprocessing.get_context("spawn")  # gRPC does not survive a fork


@dataclass(frozen=True)
class Contender:
    """One server and ten clients; a bare stream has a `speech`, fedal a `method`."""

    name: str
    serve: Callable[[Stage, Contender, Connection], None]
    join: Callable[[Stage, Contender, str], None]
    secure: bool = True
    method: str = ""
    speech: Callable[[], Speech] | None = None


@dataclass(frozen=True)
class Stage:
    """Where a contender plays: its own folder and port, certificates that all share."""

    certificates: Path
    folder: Path
    port: int
    block: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


# the bare streams


def serve_bare(stage: Stage, contender: Contender, turn: Connection) -> None:
    asyncio.run(_serve_bare(stage, contender, turn))


async def _serve_bare(stage: Stage, contender: Contender, turn: Connection) -> None:
    import grpc

    from fedal.deploy.channel import server_credentials
    from fedal.deploy.pki.authority import read_pems

    assert contender.speech is not None
    speech = contender.speech()
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
            heard = speech.heard(message)
            await gather()
            yield speech.reply(heard)

    server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 10_000)])
    handler = grpc.stream_stream_rpc_method_handler(exchange, None, None)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Exchange": handler}),))
    if contender.secure:
        server.add_secure_port(stage.address, server_credentials(read_pems(stage.certificates / "server")))
    else:
        server.add_insecure_port(stage.address)
    await server.start()
    await server.wait_for_termination()


def join_bare(stage: Stage, contender: Contender, name: str) -> None:
    import grpc

    from fedal.deploy.channel import open_channel
    from fedal.deploy.pki.authority import read_invitation

    assert contender.speech is not None
    speech = contender.speech()
    invitation = read_invitation(stage.certificates / name) if contender.secure else None
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with open_channel(stage.address, invitation) as channel, suppress(grpc.RpcError):
        outbox.put(speech.upload())
        call = channel.stream_stream("/bare/Exchange", None, None)
        for message in call(iter(outbox.get, None), wait_for_ready=True):
            speech.take(message)
            outbox.put(speech.upload())


# fedal


def serve_fedal(stage: Stage, contender: Contender, turn: Connection) -> None:
    import torch

    import benchmarks.echo  # noqa: F401 - known by its name from here on
    from fedal.config import Config
    from fedal.data.split import Task
    from fedal.deploy.plan import ServerPlan
    from fedal.deploy.service import Service
    from fedal.deploy.settings import Deployment
    from fedal.methods.server import Uploads

    class Timed(Service):
        """A server that plays a round when it is its turn, and says when the uploads of each exchange were there."""

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
        method=contender.method, clients=CLIENTS, batch_size=BATCH, tau=stage.block + 1, rounds=10_000,
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
    """A learner that computes nothing: its answer is always the same."""

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


def join_fedal(stage: Stage, contender: Contender, name: str) -> None:
    import benchmarks.echo  # noqa: F401 - known by its name from here on
    from fedal.deploy.entering import SitePlan
    from fedal.deploy.pki.authority import read_invitation
    from fedal.deploy.site import Site

    data = stage.folder / f"{name}.npz"
    np.savez(data, x=np.zeros((100, 1, 8, 8), np.float32), y=np.arange(100) % CLASSES)
    plan = SitePlan(
        stage.address, name, data, stage.folder / name, invitation=read_invitation(stage.certificates / name),
        own=Mute(name),
    )  # fmt: skip
    Site(plan, lambda text: None).run()


# the race

CONTENDERS = (
    Contender("bare stream of bytes, plain text", serve_bare, join_bare, secure=False, speech=Blank),
    Contender("bare stream of bytes", serve_bare, join_bare, speech=Blank),
    Contender("bare stream of logits", serve_bare, join_bare, speech=Logits),
    Contender("fedal, no mathematics", serve_fedal, join_fedal, method="echo"),
    Contender("fedal, FedMD", serve_fedal, join_fedal, method="fedmd"),
    Contender("fedal, FedAL", serve_fedal, join_fedal, method="fedal"),
)


@dataclass
class Score:
    """Milliseconds: of every exchange, and of a processor over all of them, at the server and at all clients."""

    times: list[float] = field(default_factory=list)
    server_ms: float = 0.0
    clients_ms: float = 0.0


def race(blocks: int, block: int) -> dict[str, Score]:
    from fedal.deploy.pki import authority as certs

    scores = {contender.name: Score() for contender in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        certificates = Path(folder) / "certs"
        certs.init(certificates, "bench")
        certs.issue_server(certificates, ["127.0.0.1"])
        for name in NAMES:
            certs.issue_client(certificates, name, None)
        stages = {c.name: Stage(certificates, Path(folder) / c.name, _free_port(), block) for c in CONTENDERS}
        with _cast(stages) as (turns, casts):
            everybody = [process.sentinel for cast in casts.values() for process in cast]
            for number in range(blocks + 1):
                for name, turn in turns.items():
                    server, *clients = casts[name]
                    before = _processor_ms([server]), _processor_ms(clients)
                    turn.send(None)
                    wait([turn, *everybody])
                    if not turn.poll():
                        raise RuntimeError(f"a process of {name} or of another contender has died")
                    arrivals = turn.recv()
                    if number:  # the first block warms up
                        score = scores[name]
                        score.times += [1e3 * (last - first) for first, last in pairwise(arrivals)]
                        score.server_ms += _processor_ms([server]) - before[0]
                        score.clients_ms += _processor_ms(clients) - before[1]
    return scores


@contextmanager
def _cast(stages: dict[str, Stage]) -> Iterator[tuple[dict[str, Connection], dict[str, list[BaseProcess]]]]:
    casts: dict[str, list[BaseProcess]] = {}
    turns: dict[str, Connection] = {}
    for contender in CONTENDERS:
        stage = stages[contender.name]
        stage.folder.mkdir()
        turns[contender.name], theirs = SPAWN.Pipe()
        casts[contender.name] = [
            SPAWN.Process(target=contender.serve, args=(stage, contender, theirs)),
            *(SPAWN.Process(target=contender.join, args=(stage, contender, name)) for name in NAMES),
        ]
    processes = [process for cast in casts.values() for process in cast]
    try:
        for process in processes:
            process.start()
        yield turns, casts
    finally:
        for process in processes:
            process.kill()
            process.join()


def _processor_ms(processes: list[BaseProcess]) -> float:
    """What they have used of a processor so far."""
    ticks = 0
    for process in processes:
        user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return 1e3 * ticks / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_markdown(scores: dict[str, Score]) -> str:
    of_bytes, of_logits = (median(scores[f"bare stream of {what}"].times) for what in ("bytes", "logits"))
    lines = [
        f"{available_cores()} cores, load average {os.getloadavg()[1]:.0f}; {CLIENTS} client processes, "
        f"{BATCH} x {CLASSES} logits up, the same or twice that down; "
        f"{len(scores['fedal, FedAL'].times)} exchanges each, in interleaved blocks.",
        "",
        "| exchange | median | 10% to 90% | to bytes | to logits | processor at the server | at each client |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, score in scores.items():
        middle, tenths, count = median(score.times), quantiles(score.times, n=10), len(score.times)
        lines.append(
            f"| {name} | {middle:.1f} ms | {tenths[0]:.1f} to {tenths[-1]:.1f} ms | "
            f"{middle / of_bytes:.2f} | {middle / of_logits:.2f} | "
            f"{score.server_ms / count:.1f} ms | {score.clients_ms / CLIENTS / count:.2f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block", type=int, default=50, help="exchanges per block")
    options = parser.parse_args()
    scores = race(options.blocks, options.block)
    table = as_markdown(scores)
    print(table)
    medians = {name: round(median(score.times), 3) for name, score in scores.items()}
    (HERE / "latency.json").write_text(json.dumps(medians, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
