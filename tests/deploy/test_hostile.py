"""Messages that no honest site sends: each is refused with its code, and the server's state does not change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments import SITES, Rehearsal, Stranger, wait_for
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.refusals import Code
from memory import resident_mb
from splits import fingerprint

B, K = 8, 10


def state_hash(service: Any) -> str:
    state = fingerprint({"server": service.server.state_dict(), "wire": service.wire.state_dict()})
    return hashlib.sha256(repr(state).encode()).hexdigest()


def put(index: int, value: float) -> Callable[[pb.Upload], None]:
    def change(upload: pb.Upload) -> None:
        array = np.frombuffer(upload.payload.tensors[0].data, np.float32).copy()
        array[index] = value
        upload.payload.tensors[0].data = array.tobytes()

    return change


def reshaped(*shape: int, dtype: str = "float32") -> Callable[[pb.Upload], None]:
    def change(upload: pb.Upload) -> None:
        tensor = upload.payload.tensors[0]
        del tensor.shape[:]
        tensor.shape.extend(shape)
        tensor.dtype, tensor.data = dtype, np.zeros(shape, dtype).tobytes()

    return change


def tensor_with(**values: Any) -> Callable[[pb.Upload], None]:
    def change(upload: pb.Upload) -> None:
        tensor = upload.payload.tensors[0]
        for name, value in values.items():
            if name == "shape":
                del tensor.shape[:]
                tensor.shape.extend(value)
            else:
                setattr(tensor, name, value)

    return change


def upload_with(**values: Any) -> Callable[[pb.Upload], None]:
    def change(upload: pb.Upload) -> None:
        for name, value in values.items():
            setattr(upload, name, value)

    return change


def kind(name: str) -> Callable[[pb.Upload], None]:
    return lambda upload: setattr(upload.payload, "kind", name)


def instead(message: pb.FromSite | bytes) -> Callable[[pb.Upload], pb.FromSite | bytes]:
    return lambda upload: message


KINDS: dict[str, tuple[Callable[[pb.Upload], Any], str]] = {
    "an older incarnation": (lambda u: setattr(u, "incarnation", u.incarnation - 1), Code.WRONG_INCARNATION),
    "a newer incarnation": (lambda u: setattr(u, "incarnation", u.incarnation + 1), Code.WRONG_INCARNATION),
    "incarnation 2^64 - 1": (upload_with(incarnation=2**64 - 1), Code.WRONG_INCARNATION),
    "a future round": (upload_with(round=1), Code.WRONG_ROUND),
    "a far future round": (upload_with(round=2**63), Code.WRONG_ROUND),
    "a future exchange": (upload_with(exchange=1), Code.WRONG_EXCHANGE),
    "a far future exchange": (upload_with(exchange=2**64 - 1), Code.WRONG_EXCHANGE),
    "another batch": (upload_with(batch="0" * 16), Code.WRONG_BATCH),
    "no batch": (upload_with(batch=""), Code.WRONG_BATCH),
    "a hostile batch name": (upload_with(batch="\x1b[2J../../etc"), Code.WRONG_BATCH),
    "the wrong direction": (kind("Guidance"), Code.UNDECLARED),
    "parameters": (kind("Weights"), Code.UNDECLARED),
    "an unknown kind": (kind("os.system"), Code.UNDECLARED),
    "no kind": (kind(""), Code.UNDECLARED),
    "no payload": (lambda u: u.ClearField("payload"), Code.UNDECLARED),
    "no tensors": (lambda u: u.payload.ClearField("tensors"), Code.WRONG_FIELDS),
    "a tensor twice": (lambda u: u.payload.tensors.append(u.payload.tensors[0]), Code.WRONG_FIELDS),
    "a further tensor": (lambda u: u.payload.tensors.add(name="more", dtype="uint8"), Code.WRONG_FIELDS),
    "a tensor of another name": (tensor_with(name="__class__"), Code.WRONG_FIELDS),
    "a further number": (lambda u: u.payload.numbers.update({"count": 3}), Code.WRONG_FIELDS),
    "an unknown dtype": (tensor_with(dtype="object"), Code.WRONG_DTYPE),
    "no dtype": (tensor_with(dtype=""), Code.WRONG_DTYPE),
    "big-endian": (tensor_with(dtype=">f4"), Code.WRONG_DTYPE),
    "float64": (reshaped(B, K, dtype="float64"), Code.WRONG_DTYPE),
    "integers": (reshaped(B, K, dtype="int32"), Code.WRONG_DTYPE),
    "no axes": (reshaped(), Code.WRONG_SHAPE),
    "one axis": (reshaped(B * K), Code.WRONG_SHAPE),
    "no rows": (reshaped(0, K), Code.WRONG_SHAPE),
    "a row less": (reshaped(B - 1, K), Code.WRONG_SHAPE),
    "a row more": (reshaped(B + 1, K), Code.WRONG_SHAPE),
    "a class less": (reshaped(B, K - 1), Code.WRONG_SHAPE),
    "a class more": (reshaped(B, K + 1), Code.WRONG_SHAPE),
    "transposed": (reshaped(K, B), Code.WRONG_SHAPE),
    "255 axes": (tensor_with(shape=[1] * 255), Code.WRONG_SHAPE),
    "a product beyond memory": (tensor_with(shape=[2**32 - 1] * 8), Code.WRONG_LENGTH),
    "too few bytes": (lambda u: setattr(u.payload.tensors[0], "data", b"\0" * 4), Code.WRONG_LENGTH),
    "trailing bytes": (lambda u: setattr(u.payload.tensors[0], "data", b"\0" * 321), Code.WRONG_LENGTH),
    "no bytes": (lambda u: setattr(u.payload.tensors[0], "data", b""), Code.WRONG_LENGTH),
    "nan first": (put(0, np.nan), Code.NOT_FINITE),
    "nan last": (put(-1, np.nan), Code.NOT_FINITE),
    "infinity": (put(3, np.inf), Code.NOT_FINITE),
    "minus infinity": (put(3, -np.inf), Code.NOT_FINITE),
    "a sum that overflows": (put(3, 3e38), Code.OUT_OF_RANGE),
    "a second hello": (instead(pb.FromSite(hello=pb.Hello(site="client-01"))), Code.UNEXPECTED),
    "an empty message": (instead(pb.FromSite()), Code.UNEXPECTED),
    "the end of another round": (instead(pb.FromSite(done=pb.Done(round=7))), Code.WRONG_INCARNATION),
    "bytes that are not a message": (instead(b"\xff" * 64), Code.NOT_A_MESSAGE),
    "a pickle": (instead(b"cos\nsystem\n(S'true'\ntR."), Code.NOT_A_MESSAGE),
    "a megabyte": (instead(b"\0" * (1 << 20)), "RESOURCE_EXHAUSTED"),
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rehearsal, Any]]:
    """A server with two honest sites; the third seat is the attacker's, with a valid certificate."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("hostile"), {"deadline_s": 5.0, "max_strikes": 10**6})
    with rehearsal.service() as service:
        for site in SITES[1:]:
            rehearsal.join_in_thread(site, patience_s=0.0)
        yield rehearsal, service


def good_upload(service: Any, begin: pb.Begin) -> pb.Upload:
    upload = pb.Upload(incarnation=begin.incarnation, round=begin.round, batch=service.server.expected_batch(0, 0))
    upload.payload.kind = "Outputs"
    upload.payload.tensors.add(name="values", dtype="float32", shape=[B, K], data=np.zeros((B, K), "f4").tobytes())
    return upload


@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_message_is_refused_with_its_code_and_changes_nothing(scene: Any, name: str) -> None:
    attack(*scene, name)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_hostile_messages_leave_state_and_memory_as_they_were(scene: Any) -> None:
    names, before = [*KINDS], 0.0
    for number in range(10_000):
        attack(*scene, names[number % len(names)])
        if number == 1000:
            before = resident_mb()
    print(f"10,000 messages of {len(names)} kinds refused; memory grew by {resident_mb() - before:.1f} MB after 1,000")
    assert resident_mb() - before < 64


def attack(rehearsal: Rehearsal, service: Any, name: str) -> None:
    change, expected = KINDS[name]
    before = state_hash(service)
    attacker = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
    try:
        attacker.hello("client-00", rounds_held=[0])
        upload = good_upload(service, attacker.begin())
        other = change(upload)
        attacker.send(other if isinstance(other, pb.FromSite | bytes) else pb.FromSite(upload=upload))
        refusal = attacker.refusal()
    finally:
        attacker.close()
    assert refusal == expected
    assert state_hash(service) == before
    wait_for(lambda: not service.seats["client-00"].connected)


HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "a newer protocol": ({"protocol_major": 2}, Code.PROTOCOL_MAJOR),
    "no protocol": ({"protocol_major": 0}, Code.PROTOCOL_MAJOR),
    "another federation": ({"federation": "other"}, Code.WRONG_FEDERATION),
    "the name of another site": ({"site": "client-01"}, Code.WRONG_IDENTITY),
    "a name that is a path": ({"site": "../../client-00"}, Code.WRONG_IDENTITY),
    "the state of another run": ({"run": "f" * 32}, Code.OTHER_RUN),
}


@pytest.mark.parametrize("name", HELLOS)
def test_a_wrong_hello_is_refused_with_its_code(scene: Any, name: str) -> None:
    rehearsal, service = scene
    changes, expected = HELLOS[name]
    before = state_hash(service)
    attacker = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
    attacker.hello(**{"site": "client-00", **changes})
    assert attacker.refusal() == expected
    attacker.close()
    assert state_hash(service) == before


def test_a_valid_certificate_outside_the_roster_is_refused(scene: Any) -> None:
    rehearsal, _ = scene
    stranger = Stranger(rehearsal.address, rehearsal.invitation("stranger"))
    stranger.hello("stranger")
    assert stranger.refusal() == Code.NOT_IN_ROSTER
    stranger.close()


def test_every_code_is_explained_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs/errors.md").read_text()
    assert [code for code in Code if f"`{code}`" not in text] == []
