"""The cost of hostile bytes is bounded: typed refusals, unchanged state, bounded memory, other sites still served."""

from __future__ import annotations

import os
import random
import socket
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deployments import SITES, Rehearsal, Stranger, grpc, wait_for
from fedal.config import Config
from fedal.data.overlap import count_shared
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import SERVICE, open_channel
from fedal.deploy.codec import LARGEST, Reader, encode
from fedal.deploy.entering import _fetch_public
from fedal.deploy.pki import authority as certs
from fedal.deploy.plan import manifest
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat
from fedal.deploy.server import _parsed
from fedal.errors import ConfigError
from fedal.messages import Outputs
from memory import resident_mb
from mutation import mutated

B, K = 32, 10
READER = Reader([Outputs], {"B": B, "K": K}, torch.float32)


class _Nowhere:
    def send(self, message: pb.FromServer) -> None: ...
    def refuse(self, refused: Refused) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def waiting_seat() -> tuple[Seat, _Nowhere]:
    """A seat that awaits the first upload of round 0 in incarnation 7."""

    def validate(site: str, upload: pb.Upload) -> Outputs:
        message = READER.read(upload.payload)
        assert isinstance(message, Outputs)
        return message

    seat, link = Seat("client-00", "wait", validate), _Nowhere()
    seat.connect(link, pb.Hello(), pb.Welcome())
    seat.ask(pb.FromServer(begin=pb.Begin(incarnation=7)), (7, 0, 0))
    return seat, link


def good_upload() -> pb.Upload:
    values = torch.arange(B * K, dtype=torch.float32).reshape(B, K) / 100
    return pb.Upload(incarnation=7, batch="b" * 16, payload=encode(Outputs(values)))


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_mutated_messages_are_refused_with_a_code_or_valid(count: int) -> None:
    """Never any other error, and never an answer with non-finite values or the wrong shape."""
    seed = 0
    raw = pb.FromSite(upload=good_upload()).SerializeToString()
    chance, taken, refused = random.Random(seed), 0, set()
    seat, link = waiting_seat()
    for _ in range(count):
        try:
            seat.take(_parsed(mutated(raw, chance)), link)
        except Refused as refusal:
            refused.add(refusal.code)
            continue
        answer, seat._answer, seat._taken = seat._answer, None, None
        if answer is not None and answer.message is not None:
            (values,) = answer.message.tensors().values()
            assert values.shape == (B, K) and torch.isfinite(values).all() and values.abs().max() <= LARGEST
            taken += 1
    assert taken > count / 100, "mutations that reach no check prove nothing"
    assert {Code.NOT_A_MESSAGE, Code.WRONG_INCARNATION, Code.UNDECLARED, Code.WRONG_LENGTH, Code.WRONG_DTYPE} <= refused


INFINITE = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF]  # infinities, nan of all kinds
TOO_LARGE = [0x7F7FFFFF, 0xFF7FFFFF, 0x7E967699, 0xFE967699, 0x49742408, 0xC9742408]  # to the next beyond 1e6
SPECIAL = np.array([*INFINITE, *TOO_LARGE], np.uint32).view(np.float32)


def test_every_special_value_is_refused_at_every_position() -> None:
    valid = np.zeros((B, K), np.float32)
    for value in SPECIAL:
        for position in range(B * K):
            array = valid.copy()
            array.flat[position] = value
            with pytest.raises(Refused) as refused:
                READER.read(encode(Outputs(torch.from_numpy(array))))
            assert refused.value.code in (Code.NOT_FINITE, Code.OUT_OF_RANGE)
    for value in (1e6, -1e6, 1e-45, -0.0):  # the limit itself, a subnormal number and minus zero are valid
        READER.read(encode(Outputs(torch.full((B, K), value))))


@pytest.mark.parametrize("length", [2**20, 2**31 - 1, 2**32, 2**63 - 1])
def test_an_excessive_announced_length_allocates_nothing(length: int) -> None:
    digits, rest = [], length
    while rest:
        digits.append(rest & 0x7F | 0x80)
        rest >>= 7
    varint = bytes([*digits[:-1], digits[-1] & 0x7F])
    seat, link = waiting_seat()
    tracemalloc.start()
    for field in (0x12, 0x0A, 0x1A):  # upload, hello, done, each announcing that many bytes
        with pytest.raises(Refused) as refused:
            seat.take(_parsed(bytes([field]) + varint + b"\0" * 8), link)
        assert refused.value.code == Code.NOT_A_MESSAGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 16


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rehearsal, list[str]]]:
    rehearsal, events = Rehearsal(tmp_path_factory.mktemp("limits")), []
    with rehearsal.service(lambda event, **fields: events.append(repr(fields))):
        yield rehearsal, events


def test_any_compressed_message_is_refused(scene: Any) -> None:
    rehearsal, _ = scene
    with open_channel(rehearsal.address, rehearsal.invitation("client-00"), 1 << 28) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Join", lambda raw: raw, pb.FromServer.FromString)
        bomb = iter([b"\0" * (64 << 20)])
        with pytest.raises(grpc.RpcError) as refused:
            next(call(bomb, timeout=30, compression=grpc.Compression.Gzip))
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_names_that_are_paths_or_escapes_are_refused(scene: Any, tmp_path: Path) -> None:
    """Five hundred hostile names: in a site's certificate, in a roster, and in a Hello."""
    rehearsal, events = scene
    chance = random.Random(0)
    pieces = ["..", "/", "\\", "\x1b[2J", "\n", "\0", "%s", "$(id)", "'", '"', ";", "A", "ü", "a", "-", " ", "\u202e"]
    names = {"".join(chance.choices(pieces, k=chance.randint(1, 12))) for _ in range(700)}
    hostile = sorted(name for name in names if not certs.NAME.fullmatch(name))[:500]
    before = sorted(tmp_path.parent.rglob("*"))
    assert len(hostile) == 500
    for name in hostile:
        with pytest.raises(ConfigError):
            certs.issue_client(rehearsal.folder / "certs", name, None)
        with pytest.raises(ConfigError):
            Config(clients=[{"name": name}, {"name": "b"}, {"name": "c"}])
    assert sorted(tmp_path.parent.rglob("*")) == before
    for name in hostile[::25]:
        stranger = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        stranger.hello(name)
        assert stranger.refusal() == Code.WRONG_IDENTITY
        stranger.close()
    assert events and not [event for event in events if any(name in event for name in hostile if len(name) > 3)]


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def test_a_storm_of_connections_leaves_nothing_behind(tmp_path: Path, count: int) -> None:
    """Unknown clients hang up, send garbage or abandon a handshake; afterwards the sites train as usual."""
    rehearsal = Rehearsal(tmp_path)
    openings = (b"", b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("1603010200010001fc0303"), b"\xff" * 100)
    with rehearsal.service() as service:
        open_files, before = len(os.listdir("/proc/self/fd")), 0.0
        for number in range(count):
            if number == count // 10:
                before = resident_mb()
            with socket.create_connection(("127.0.0.1", rehearsal.port), 10) as stranger:
                stranger.sendall(openings[number % len(openings)])
        wait_for(lambda: len(os.listdir("/proc/self/fd")) <= open_files + 10)
        grown = resident_mb() - before
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
    print(f"{count:,} connections; memory grew by {grown:.1f} MB after a tenth of them")
    assert grown < 32
    assert rehearsal.deployed() == rehearsal.alone()


def test_idle_connections_do_not_keep_sites_out(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    folder = rehearsal.folder / "certs/client-00"
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    with rehearsal.service() as service, ExitStack() as stack:
        for _ in range(200):  # not even a handshake
            stack.enter_context(socket.create_connection(("127.0.0.1", rehearsal.port), 10))
        for _ in range(50):  # a handshake and then nothing
            raw = socket.create_connection(("127.0.0.1", rehearsal.port), 10)
            stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
    assert rehearsal.deployed() == rehearsal.alone()


@pytest.mark.parametrize("name", ["a" * 1900, "", "test accuracy", "\x1b[2J", "../own", "own\n"])
def test_a_metric_with_an_odd_name_is_refused(name: str) -> None:
    seat, link = waiting_seat()
    with pytest.raises(Refused) as refused:
        seat.take(pb.FromSite(done=pb.Done(incarnation=7, metrics={name: 0.5})), link)
    assert refused.value.code == Code.WRONG_METRICS
    seat.take(pb.FromSite(done=pb.Done(incarnation=7, metrics={"test_accuracy": 0.5})), link)


# the public set


def announced(public_x: Any) -> pb.Welcome:
    shape = public_x.shape
    return pb.Welcome(public_samples=shape[0], input_shape=shape[1:], public_sha256=manifest(public_x))


def sending(chunks: list[bytes]) -> Any:
    """A channel to a server that sends these chunks as its public set."""
    return SimpleNamespace(
        unary_stream=lambda *_: lambda request, **options: (pb.Chunk(data=chunk) for chunk in chunks)
    )


def test_any_flipped_bit_of_the_public_set_is_detected() -> None:
    public_x, chance = np.random.default_rng(0).normal(size=(40, 8, 8)).astype(np.float32), random.Random(0)
    raw = public_x.tobytes()
    assert np.array_equal(_fetch_public(sending([raw[:1000], raw[1000:]]), announced(public_x), 1.0), public_x)
    for _ in range(50):
        wrong, bit = bytearray(raw), chance.randrange(8 * len(raw))
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused) as refused:
            _fetch_public(sending([bytes(wrong)]), announced(public_x), 1.0)
        assert refused.value.code == Code.PUBLIC_SET


@pytest.mark.parametrize("case", ["too little", "too much", "endless", "empty", "huge", "not finite"])
def test_a_public_set_of_wrong_size_or_values_is_refused(case: str) -> None:
    public_x = np.zeros((4, 2), np.float32)
    welcome, chunks = announced(public_x), [public_x.tobytes()]
    if case == "too little":
        chunks = [chunks[0][:-1]]
    elif case == "too much":
        chunks = [chunks[0] + b"\0"]
    elif case == "endless":
        chunks = [b""] + chunks * 1000
    elif case == "empty":
        welcome.public_samples = 0
    elif case == "huge":
        welcome.public_samples = 2**40
    else:
        public_x[1, 1] = np.nan
        welcome, chunks = announced(public_x), [public_x.tobytes()]
    with pytest.raises(Refused) as refused:
        _fetch_public(sending(chunks), welcome, 1.0)
    assert refused.value.code == Code.PUBLIC_SET


def test_private_samples_in_the_public_set_are_counted() -> None:
    public = np.random.default_rng(0).normal(size=(20, 3, 3)).astype(np.float32)
    own = np.concatenate([public[4:7], public[:2] + 1e-6, np.zeros((5, 3, 3), np.float32)])
    assert count_shared(own, public) == 3
    assert count_shared(own.astype(np.float64), public) == 3
