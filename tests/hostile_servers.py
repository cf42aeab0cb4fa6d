"""Servers that lead a site through a run as they should, until they misbehave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commands import Answer, fedal
from deployments import grpc, pb
from fedal.config import Config
from fedal.deploy.channel import CHUNK_BYTES, SERVICE
from fedal.deploy.codec import Reader, encode
from fedal.deploy.plan import manifest
from fedal.deploy.refusals import Code
from fedal.messages import Guidance, Outputs

FEATURES, K, B, TAU, ROUNDS = 6, 3, 8, 4, 8
SETTINGS = {"method": "fedal", "batch_size": B, "lr": 0.01, "seed": 3, "tau": TAU}

Messages = Iterable[pb.FromServer | bytes]
Behave = Callable[["HostileServer", pb.FromServer], Messages]
"""The honest message -> what the server sends instead."""


def write_site_data(path: Path) -> None:
    """Three classes that a small network tells apart after a few rounds."""
    random = np.random.default_rng(0)
    y = np.arange(240) % K
    x = random.normal(size=(240, FEATURES)) + 4 * np.eye(K, FEATURES)[y]
    train, test = slice(None, 120), slice(120, None)
    np.savez(path, x=x[train].astype(np.float32), y=y[train], test_x=x[test].astype(np.float32), test_y=y[test])


def join(folder: Path, server: HostileServer, *words: str, model: str = "mlp-small") -> Answer:
    """`fedal join` to its end. A traceback would be an exception here."""
    folder.mkdir(exist_ok=True)
    data = folder / "private.npz"
    if not data.exists():
        write_site_data(data)
    return fedal("join", "--server", server.address, "--name", "site-1", "--data", data, "--model", model,
                 "--state", folder / "state", "--save", folder / "trained.safetensors", "--insecure",
                 "--patience", 1, *words)  # fmt: skip


@dataclass
class HostileServer:
    """Plain text on a loopback port, one site, no half of a method: the mean it sends is the site's own outputs."""

    behave: Behave = field(default=lambda server, message: [message])
    chunks: Callable[[bytes], Iterable[bytes]] = field(
        default=lambda raw: (raw[i : i + CHUNK_BYTES] for i in range(0, len(raw), CHUNK_BYTES))
    )
    address: str = ""
    streams: int = 0  # how many the site has opened
    said: list[pb.FromServer] = field(default_factory=list)
    context: Any = None
    _answered: set[tuple[int, ...]] = field(default_factory=set)

    def __enter__(self) -> HostileServer:
        shifted = np.random.default_rng(1).normal(size=(40, FEATURES)) + 1
        self.public_x = shifted.astype(np.float32)
        self._reader = Reader([Outputs], {"B": B, "K": K}, torch.float32)
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
        handlers = {
            "Join": grpc.stream_stream_rpc_method_handler(self._join, pb.FromSite.FromString, _serialised),
            "PublicSet": grpc.unary_stream_rpc_method_handler(
                self._public_set, pb.PublicSetRequest.FromString, pb.Chunk.SerializeToString
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def _join(self, requests: Iterator[pb.FromSite], context: Any) -> Iterator[pb.FromServer | bytes]:
        self.streams, self.context = self.streams + 1, context
        self._answered.clear()
        for request in requests:
            for message in self._honest(request):
                yield from self.behave(self, message)
                self.said.append(message)

    def _public_set(self, request: pb.PublicSetRequest, context: Any) -> Iterator[pb.Chunk]:
        for part in self.chunks(self.public_x.tobytes()):
            yield pb.Chunk(data=part)

    def _honest(self, request: pb.FromSite) -> Iterator[pb.FromServer]:
        kind = request.WhichOneof("body")
        if kind == "hello":
            yield pb.FromServer(welcome=self.welcome())
            begun = [message.begin.round for message in self.said if message.WhichOneof("body") == "begin"]
            yield self._begin(begun[-1] if begun else 0)
        elif kind == "upload":
            upload = request.upload
            if (place := (upload.incarnation, upload.round, upload.exchange)) in self._answered:
                return  # the site repeats itself because the server did
            self._answered.add(place)
            reply = pb.FromServer()
            reply.reply.incarnation, reply.reply.round = upload.incarnation, upload.round
            reply.reply.exchange = upload.exchange
            if upload.payload.kind == "Outputs":
                f = self._reader.read(upload.payload)
                assert isinstance(f, Outputs)
                encode(Guidance(f.values, torch.zeros_like(f.values), 3), reply.reply.payload)
            else:  # fedavg: the mean of one client is its own weights
                reply.reply.payload.CopyFrom(upload.payload)
            yield reply
        elif kind == "done":
            rounds = request.done.round + 1
            if (place := (request.done.incarnation, rounds)) in self._answered:
                return
            self._answered.add(place)
            if rounds < ROUNDS:
                yield self._begin(rounds)
            else:
                yield pb.FromServer(finished=pb.Finished(rounds=rounds))

    def _begin(self, rounds: int) -> pb.FromServer:
        return pb.FromServer(begin=pb.Begin(incarnation=1, round=rounds, save=True))

    def welcome(self, **changes: Any) -> pb.Welcome:
        settings = {**Config(**{**SETTINGS, "clients": 3}).for_sites(), **changes}  # type: ignore[arg-type]
        return pb.Welcome(
            run="run", settings=json.dumps(settings), dataset="own", input_shape=(FEATURES,), n_classes=K,
            public_samples=len(self.public_x), public_sha256=manifest(self.public_x), total_rounds=ROUNDS,
        )  # fmt: skip


def _serialised(message: pb.FromServer | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


# ways to misbehave


def at(kind: str, change: Callable[[HostileServer, pb.FromServer], Messages | None]) -> Behave:
    """Honest but for messages of one kind, which `change` alters in place or replaces."""

    def behave(server: HostileServer, message: pb.FromServer) -> Messages:
        if message.WhichOneof("body") != kind:
            return [message]
        changed = change(server, message)
        return [message] if changed is None else changed

    return behave


def welcome(**values: Any) -> Behave:
    """A welcome with other values."""

    def change(server: HostileServer, message: pb.FromServer) -> None:
        for name, value in values.items():
            if name == "input_shape":
                del message.welcome.input_shape[:]
                message.welcome.input_shape.extend(value)
            else:
                setattr(message.welcome, name, value)

    return at("welcome", change)


def settings(**values: Any) -> Behave:
    """A welcome with other settings."""
    return at("welcome", lambda server, message: message.welcome.CopyFrom(server.welcome(**values)))


def option(**values: Any) -> Behave:
    """A welcome with other options of the method."""
    honest = Config(**{**SETTINGS, "clients": 3}).for_sites()["options"]  # type: ignore[arg-type]
    return settings(options={**honest, **values})


def with_fedavg(behave: Behave) -> Behave:
    """The same replies of a server that runs fedavg."""
    runs_fedavg = settings(method="fedavg", options={"tau": TAU})
    return lambda server, message: (behave if message.WhichOneof("body") == "reply" else runs_fedavg)(server, message)


def tensor(name: str, value: Callable[[Any], Any]) -> Behave:
    """Replies in which one tensor is another."""

    def change(server: HostileServer, message: pb.FromServer) -> None:
        for each in message.reply.payload.tensors:
            if each.name == name:
                array = np.frombuffer(each.data, np.float32).reshape(tuple(each.shape))
                each.data = np.asarray(value(array), np.float32).tobytes()

    return at("reply", change)


def number(name: str, value: int) -> Behave:
    """Replies in which one number is another."""
    return at("reply", lambda server, message: message.reply.payload.numbers.update({name: value}))


def instead_of(kind: str, *messages: pb.FromServer | bytes) -> Behave:
    return at(kind, lambda server, message: messages)


def first_in_round(kind: str, at_round: int, *messages: pb.FromServer | bytes) -> Behave:
    """Other messages in place of the one of a kind that belongs to one round."""
    return at(kind, lambda server, message: messages if getattr(message, kind).round == at_round else None)


def refusal(code: str, text: str) -> pb.FromServer:
    return pb.FromServer(refusal=pb.Refusal(code=code, text=text))


def _aborts(server: HostileServer, message: pb.FromServer) -> Messages:
    server.context.abort(grpc.StatusCode.UNAVAILABLE, f"{ESCAPES} gone")
    return []


def _ends(server: HostileServer, message: pb.FromServer) -> Messages:
    server.context.cancel()
    return []


def _silent(server: HostileServer, message: pb.FromServer) -> Messages:
    time.sleep(1.0)
    server.context.cancel()
    return []


def _steered(mean: Any) -> Any:
    """The classes of the site's own outputs, moved on by one and magnified: all answers are wrong."""
    return 1e4 * np.roll(mean - mean.mean(-1, keepdims=True), 1, -1)


def _steered_late(server: HostileServer, message: pb.FromServer) -> None:
    if message.reply.round >= ROUNDS // 2:
        list(tensor("mean", _steered)(server, message))
        list(tensor("grad", lambda grad: 1e6 * np.sign(np.roll(grad + np.arange(K), 1, -1) - 1))(server, message))


def _rename(payload: pb.Payload) -> None:
    for each in payload.tensors:
        each.name = f"{ESCAPES}{each.name}"


def _flatten(payload: pb.Payload) -> None:
    for each in payload.tensors:
        size = int(np.prod(each.shape))
        del each.shape[:]
        each.shape.append(size)


def _magnify(payload: pb.Payload) -> None:
    for each in payload.tensors:
        each.data = np.full(len(each.data) // 4, 1e6, np.float32).tobytes()


def _outlasting(raw: bytes) -> Iterator[bytes]:
    for i in range(len(raw)):
        time.sleep(0.01)
        yield raw[i : i + 1]


def _empty_for_ever(raw: bytes) -> Iterator[bytes]:
    while True:
        yield b""


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
NESTED = "[" * 100_000

FINISHES = ""
"""The site takes part to the end, and its model is as good as its best."""

BEHAVIOURS: dict[str, tuple[Behave, str]] = {
    "honest": (lambda server, message: [message], FINISHES),
    # content of replies
    "gradients of 1e6": (tensor("grad", lambda grad: grad + 1e6 * np.eye(B, K)), FINISHES),
    "gradients of 1e7": (tensor("grad", lambda grad: grad + 1e7), Code.OUT_OF_RANGE),
    "gradients that are nan": (tensor("grad", lambda grad: grad + np.nan), Code.NOT_FINITE),
    "infinite means": (tensor("mean", lambda mean: mean + np.inf), Code.NOT_FINITE),
    "wrong means and gradients of 1e6, late": (at("reply", _steered_late), FINISHES),
    "no client responded": (number("count", 0), Code.CONTENT),
    "a negative number of clients": (number("count", -5), Code.CONTENT),
    "one client responded": (number("count", 1), "at least two clients"),
    "a number that the message lacks": (number("samples", 2**62), Code.WRONG_FIELDS),
    "another kind of reply": (at("reply", lambda s, m: setattr(m.reply.payload, "kind", "Weights")), Code.UNDECLARED),
    "a reply without content": (at("reply", lambda s, m: m.reply.ClearField("payload")), Code.UNDECLARED),
    # the order of messages
    "every reply twice": (at("reply", lambda server, message: [message, message]), FINISHES),
    "every begin twice": (at("begin", lambda server, message: [message, message]), FINISHES),
    "a reply to another exchange": (at("reply", lambda s, m: setattr(m.reply, "exchange", 7)), Code.WRONG_EXCHANGE),
    "a reply from another incarnation": (
        at("reply", lambda s, m: setattr(m.reply, "incarnation", 9)), Code.WRONG_ROUND),
    "a round that does not exist": (at("begin", lambda s, m: setattr(m.begin, "round", ROUNDS)), "begins round 9 of 8"),
    "round 2^64 - 1": (at("begin", lambda s, m: setattr(m.begin, "round", 2**64 - 1)), "of 8"),
    "a request before the welcome": (instead_of("welcome"), Code.UNEXPECTED),
    "a return to a round never reached": (
        at("begin", lambda s, m: m.begin.MergeFrom(pb.Begin(round=5, restore=True))), Code.WRONG_ROUND),
    "a welcome to another run": (
        first_in_round("begin", 2, pb.FromServer(welcome=pb.Welcome(run="other"))), Code.OTHER_RUN),
    "the last round at once": (at("begin", lambda s, m: setattr(m.begin, "round", ROUNDS - 1)), FINISHES),
    "a thousand probes": (at("begin", lambda s, m: [*[pb.FromServer(probe=pb.Probe())] * 1000, m]), FINISHES),
    "back to a state that is gone": (
        first_in_round("begin", 4, pb.FromServer(begin=pb.Begin(incarnation=2, restore=True))), Code.WRONG_ROUND),
    "a kind of message that nobody knows": (first_in_round("begin", 1, b"\xfa\x06\x00"), Code.UNEXPECTED),
    "bytes that are not a message": (first_in_round("begin", 1, b"\xff" * 64), Code.NOT_A_MESSAGE),
    "no message at all": (first_in_round("begin", 1, b""), Code.UNEXPECTED),
    "a message of 300 MB": (first_in_round("begin", 1, b"\0" * 300_000_000), Code.WRONG_LENGTH),
    # the end
    "finished at once, after 0 rounds": (
        instead_of("begin", pb.FromServer(finished=pb.Finished(rounds=0))), Code.NOT_FINISHED),
    "finished at once, after all rounds": (
        instead_of("begin", pb.FromServer(finished=pb.Finished(rounds=ROUNDS))), Code.WRONG_ROUND),
    "finished too early": (
        first_in_round("begin", 2, pb.FromServer(finished=pb.Finished(rounds=2))), Code.NOT_FINISHED),
    "finished beyond the end": (
        at("finished", lambda s, m: setattr(m.finished, "rounds", 2**63)), Code.NOT_FINISHED),
    # settings
    "tau of 10^9": (option(tau=10**9), Code.SETTINGS),
    "batches of 10^9": (settings(batch_size=10**9), Code.SETTINGS),
    "a temperature of 1e-30": (option(temperature=1e-30), Code.SETTINGS),
    "a step size of 1e30": (settings(lr=1e30), Code.SETTINGS),
    "a seed of a thousand digits": (settings(seed=10**1000), Code.SETTINGS),
    "an integer of 10,000 digits": (welcome(settings=f'{{"seed": 1{"0" * 10_000}}}'), Code.SETTINGS),
    "settings nested 100,000 deep": (welcome(settings=NESTED), Code.SETTINGS),
    "settings of ten megabytes": (welcome(settings=f'{{"method": "{"x" * 10**7}"}}'), Code.SETTINGS),
    "a run with a name of a megabyte": (welcome(run="x" * 2**20), Code.SETTINGS),
    "settings that are a list": (welcome(settings="[]"), Code.SETTINGS),
    "settings that are null": (welcome(settings="null"), Code.SETTINGS),
    "settings of a site": (settings(device="cuda"), Code.SETTINGS),
    "settings that name code": (settings(method="os:system"), Code.NAMES_CODE),
    "an option with escape codes": (option(**{ESCAPES: 1}), Code.SETTINGS),
    "a method that takes the weights": (settings(method="fedavg", options={}), Code.NOT_ALLOWED),
    "four billion classes": (welcome(n_classes=2**32 - 1), Code.SETTINGS),
    "one class": (welcome(n_classes=1), Code.SETTINGS),
    "fewer classes than the site has": (welcome(n_classes=2), "error:"),
    "no rounds": (welcome(total_rounds=0), Code.SETTINGS),
    "2^64 - 1 rounds": (welcome(total_rounds=2**64 - 1), Code.SETTINGS),
    "inputs of another shape": (welcome(input_shape=(2, 3)), "error:"),
    # the public set
    "inputs beyond memory": (welcome(input_shape=[2**32 - 1] * 8), Code.PUBLIC_SET),
    "no public samples": (welcome(public_samples=0), Code.PUBLIC_SET),
    "another public set": (welcome(public_sha256="0" * 64), Code.PUBLIC_SET),
    # texts
    "a refusal with escape codes": (instead_of("welcome", refusal(ESCAPES, ESCAPES)), "owned"),
    "a refusal of a megabyte": (instead_of("welcome", refusal(Code.REVOKED, "x" * 2**20)), Code.REVOKED),
    "a refusal that asks to try again, for ever": (
        instead_of("welcome", refusal(Code.IN_USE, "later")), Code.IN_USE),
    "an end of the call with escape codes": (at("welcome", _aborts), Code.UNREACHABLE),
    # time
    "streams that end after the welcome": (at("begin", _ends), Code.UNREACHABLE),
    "silence": (at("begin", _silent), Code.UNREACHABLE),
}  # fmt: skip
"""What the server does -> the behaviour, and what `fedal join` must print; nothing if it takes part to the end."""

WEIGHTS: dict[str, tuple[Behave, str]] = {
    "honest": (lambda server, message: [message], FINISHES),
    "a negative number of samples": (number("samples", -1), Code.CONTENT),
    "2^62 samples": (number("samples", 2**62), Code.CONTENT),
    "no members": (number("members", 0), Code.CONTENT),
    "no weights": (at("reply", lambda s, m: m.reply.payload.ClearField("tensors")), "error: round 0"),
    "weights with other names": (at("reply", lambda s, m: _rename(m.reply.payload)), "error: round 0"),
    "weights of other shapes": (at("reply", lambda s, m: _flatten(m.reply.payload)), "error: round 0"),
    "weights of 1e6": (at("reply", lambda s, m: _magnify(m.reply.payload)), FINISHES),
}  # fmt: skip
"""The same for a server that runs fedavg, and a site that allows it to have the weights."""

PUBLIC_SETS: dict[str, Callable[[bytes], Iterable[bytes]]] = {
    "too short": lambda raw: [raw[:-4]],
    "too long": lambda raw: [raw, b"\0"],
    "of other samples": lambda raw: [raw[4:] + raw[:4]],
    "in empty pieces, for ever": _empty_for_ever,
    "byte by byte": _outlasting,
}
"""How the server sends the public set; each is refused."""
