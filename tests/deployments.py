"""Federations of real processes, or of threads in this one, on loopback with their own certificates."""

from __future__ import annotations

import hashlib
import queue
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from fedal.config import Config
from forked import Forked
from optional import needs

grpc = needs("grpc", "deploy")
needs("cryptography", "deploy")

from fedal.deploy import fedal_pb2 as pb  # noqa: E402
from fedal.deploy.channel import PROTOCOL_MAJOR, SERVICE, open_channel, refusal_of  # noqa: E402
from fedal.deploy.consent import SINGLE  # noqa: E402
from fedal.deploy.entering import SitePlan  # noqa: E402
from fedal.deploy.pki import authority as certs  # noqa: E402
from fedal.deploy.plan import plan_federation  # noqa: E402
from fedal.deploy.service import Service  # noqa: E402
from fedal.deploy.settings import Deployment, load_federation  # noqa: E402
from fedal.deploy.site import Site  # noqa: E402
from fedal.messages import OUTPUTS_ONLY  # noqa: E402
from fedal.simulate.export import export_sites  # noqa: E402
from fedal.simulate.run import run  # noqa: E402

SITES = ("client-00", "client-01", "client-02")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Simulates a full disk: the system cuts off any file that would grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


class Rehearsal:
    """A folder with config, certificates and the sites' data, as an operator would create them."""

    def __init__(
        self, folder: Path, deployment: dict[str, Any] | None = None, *, export: bool = True, **settings: Any
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        values = {"clients": 3, "models": "auto", "rounds": 4, "batch_size": 8, "seed": 1, "options": {"tau": 2}}
        values |= {"checkpoint_every": 2, "eval_every": 4, **settings}
        table = {"federation": "test", "listen": self.address, "certificates": str(folder / "certs/server")}
        table |= {"folder": str(folder / "server"), "deadline_s": 30.0, **(deployment or {})}
        self.config_file = folder / "federation.toml"
        self.config_file.write_text(tomli_w.dumps({**values, "deployment": table}))
        self.config, self.deployment = self.load()
        certs.init(folder / "certs", "test")
        certs.issue_server(folder / "certs", ["localhost", "127.0.0.1"])
        self.plan = plan_federation(self.config, self.deployment)
        for site in (*SITES, "operator", "stranger"):
            certs.issue_client(folder / "certs", site, self.plan.public_sha256, contract=self.plan.contract)
        if export:
            export_sites(self.config, folder / "sites")

    def load(self) -> tuple[Config, Deployment]:
        return load_federation(self.config_file)

    def invitation(self, site: str) -> certs.Invitation:
        return certs.read_invitation(self.folder / "certs" / site)

    def alone(self) -> dict[str, str]:
        """sha256 of every client's weights after `fedal run` in one process."""
        out = self.folder / "run"
        if not out.exists():
            run(self.config, out)
        return {site: digest(out / "models" / f"{site}.safetensors") for site in SITES}

    def deployed(self) -> dict[str, str]:
        return {site: digest(self.folder / f"{site}.safetensors") for site in SITES}

    # threads

    def site_plan(self, site: str) -> SitePlan:
        return SitePlan(
            self.address,
            site,
            self.folder / "sites" / f"{site}.npz",
            self.folder / f"{site}-state",
            invitation=self.invitation(site),
            save=self.folder / f"{site}.safetensors",
            patience_s=20.0,
            allow=self.config.method_object().reveals | OUTPUTS_ONLY,
        )

    @contextmanager
    def service(self, log: Callable[..., None] = lambda event, **fields: None) -> Any:
        """Runs the server in a thread of this process, and stops it at the end."""
        stop = threading.Event()
        service = Service(self.plan, should_stop=stop.is_set, log=log)
        failure: list[BaseException] = []

        def run() -> None:
            try:
                service.run()
            except Exception as error:
                failure.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_for(lambda: service.grpc_server.port or failure)
            yield service
        finally:
            stop.set()
            thread.join(60)
            service.failure = failure  # type: ignore[attr-defined]

    def join_in_thread(self, site: str, **changes: Any) -> tuple[threading.Thread, list[BaseException]]:
        failure: list[BaseException] = []
        said: list[str] = []
        plan = replace(self.site_plan(site), **changes)

        def run() -> None:
            try:
                Site(plan, said.append).run()
            except Exception as error:
                failure.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        # One after the other: initialisers draw from torch's generator, which all threads share.
        wait_for(lambda: failure or any(text.startswith("joined") or text.endswith("again.") for text in said))
        return thread, failure

    # processes

    def serve_process(self) -> Forked:
        return self._started("server.log", ["serve", "--config", str(self.config_file)])

    def join_process(self, site: str, *more: str) -> Forked:
        words = ["join", "--server", self.address, "--name", site, "--data", f"sites/{site}.npz"]
        words += ["--invitation", f"certs/{site}", "--save", f"{site}.safetensors"]
        more_than_outputs = self.config.method_object().reveals & ~OUTPUTS_ONLY
        words += [word for name, leak in SINGLE.items() if leak in more_than_outputs for word in ("--allow", name)]
        return self._started(f"{site}.log", [*words, *more])

    def _started(self, log: str, words: list[str]) -> Forked:
        return Forked(words, self.folder, self.folder / log)

    def committed(self) -> int:
        found = sorted((self.folder / "server/checkpoints").glob("round-*.json"))
        return int(found[-1].stem.removeprefix("round-")) if found else -1


class Stranger:
    """A stream whose every byte the test controls."""

    def __init__(self, address: str, invitation: certs.Invitation | None) -> None:
        self.session = secrets.token_hex(16)
        self._outbox: queue.SimpleQueue[pb.FromSite | None] = queue.SimpleQueue()
        self._channel = open_channel(address, invitation)
        call = self._channel.stream_stream(
            f"/{SERVICE}/Join", lambda m: m if isinstance(m, bytes) else m.SerializeToString(), pb.FromServer.FromString
        )
        self.responses = call(iter(self._outbox.get, None), timeout=30)

    def send(self, message: Any) -> None:
        self._outbox.put(message)

    def hello(self, site: str, **changes: Any) -> None:
        values = {"protocol_major": PROTOCOL_MAJOR, "federation": "test", "site": site, "session": self.session}
        values |= changes
        self.send(pb.FromSite(hello=pb.Hello(**values)))

    def receive(self) -> pb.FromServer:
        return next(self.responses)  # type: ignore[no-any-return]

    def begin(self) -> pb.Begin:
        """Waits until the server begins a round."""
        while (message := self.receive()).WhichOneof("body") != "begin":
            pass
        return message.begin

    def refusal(self) -> str:
        """The code with which the stream ends; gRPC's own code if there is none of ours."""
        try:
            for message in self.responses:
                if message.WhichOneof("body") == "refusal":
                    return str(message.refusal.code)
        except grpc.RpcError as error:
            refused = refusal_of(error)
            return str(refused.code if refused else error.code().name)
        return "ended"

    def close(self) -> None:
        self._outbox.put(None)
        self.responses.cancel()
        self._channel.close()
