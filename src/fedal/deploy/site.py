"""A site of a deployed federation: its own model, its own data, one stream to the server.

The site decides what runs here: the server's settings are checked, and whatever would name code is refused. The public
set comes from the server and is verified against the hash in the invitation, which the server did not send.
"""

from __future__ import annotations

import hashlib
import json
import math
import queue
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedal.config import Config
from fedal.data.own import load_npz
from fedal.data.streams import PrivateData, Samples
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import CHUNK_BYTES, PROTOCOL_MAJOR, PROTOCOL_MINOR, SERVICE, open_channel, reason_of
from fedal.deploy.codec import Reader, encode, manifest
from fedal.deploy.pki.authority import Invitation
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.service import SETTINGS
from fedal.errors import CheckpointError, ConfigError, DataError, FedalError
from fedal.learners.base import Learner
from fedal.machine import refuse_windows
from fedal.messages import Message
from fedal.methods.client import ClientRound
from fedal.metrics import accuracy
from fedal.models.own import call_any_factory, load_factory
from fedal.own_code import is_import_path
from fedal.records.checkpoint import load_checkpoint, load_newest, save_checkpoint, save_model
from fedal.records.folder import RunFolder, named_code, write_json
from fedal.seeding import BatchStream, torch_seeded
from fedal.simulate.assemble import DTYPES, axis_lengths, build_client, build_learner, model_of, refuse_misfits
from fedal.simulate.world import Task

MAX_PUBLIC_BYTES = 1 << 31
MAX_MESSAGE_BYTES = 1 << 28
MIN_SAMPLES = 8
RETRY_S = (0.2, 0.5, 1.0, 2.0)
JOIN_AGAIN = (Code.IN_USE, Code.WRONG_INCARNATION, Code.WRONG_ROUND, Code.WRONG_EXCHANGE)
"""Refusals that pass: the server has not noticed yet that our last process is gone, or has gone back a few rounds."""


@dataclass(frozen=True)
class SitePlan:
    """What the operator of a site decides."""

    server: str
    name: str
    data: Path
    state: Path
    model: str = "auto"
    invitation: Invitation | None = None  # None: plain text, on loopback only
    federation: str = "fedal"
    save: Path | None = None
    share_metrics: bool = False
    restart: bool = False
    patience_s: float = 600.0
    own: nn.Module | Learner | None = None  # given in Python, instead of `model`


class Site:
    """One client process."""

    def __init__(self, plan: SitePlan, tell: Callable[[str], None]) -> None:
        self._plan, self._tell = plan, tell
        self._folder = RunFolder(plan.state)
        self._about = plan.state / "site.json"
        self._session = secrets.token_hex(16)
        self._run = ""
        self._position = (0, 0)  # incarnation and round of the newest Begin
        self._exchange = 0
        self._begin = pb.Begin()
        self._round: ClientRound | None = None
        self._sent: pb.FromSite | None = None
        self._ready = False
        self._finished = False
        self._rounds = 0

    def play(self) -> None:
        """Takes part until the run is finished; a lost server is waited for."""
        torch.set_num_threads(1)  # 1 and 2 intra-op threads give different bits
        if not self._plan.data.exists():
            raise DataError(f"{self._plan.data}: there is no such file.")
        self._folder.create()
        if self._plan.save is not None:
            RunFolder(self._plan.save.parent).create()  # now, not when the model is trained
        with self._folder.locked():
            if self._plan.restart:
                for path in [self._about, *self._folder.checkpoints.glob("round-*")]:
                    path.unlink(missing_ok=True)
            if self._about.exists():
                self._run = _run_of(self._about)
            lost_at, attempt, told = time.monotonic(), 0, False
            while not self._finished:
                obstacle: Refused | None = None
                try:
                    if self._talk():
                        lost_at, attempt, told = time.monotonic(), 0, False
                except grpc.RpcError as error:
                    text = f"no connection to {self._plan.server} ({reason_of(error)}). Is the server running?"
                    obstacle = Refused(Code.UNREACHABLE, text)
                except Refused as refused:
                    if refused.code not in JOIN_AGAIN:
                        raise
                    obstacle = refused
                if obstacle is not None and time.monotonic() - lost_at > self._plan.patience_s:
                    raise obstacle
                if obstacle is not None and not told:
                    self._tell(f"{obstacle.text} Trying again.")
                    told = True
                if not self._finished:
                    time.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                    attempt += 1

    def _talk(self) -> bool:
        """One stream, from Hello to its end; whether the server let us in."""
        welcomed = False
        with open_channel(self._plan.server, self._plan.invitation, MAX_MESSAGE_BYTES) as channel:
            outbox: queue.SimpleQueue[pb.FromSite | None] = queue.SimpleQueue()
            call = channel.stream_stream(
                f"/{SERVICE}/Join", pb.FromSite.SerializeToString, pb.FromServer.FromString
            )  # fmt: skip
            outbox.put(pb.FromSite(hello=self._hello()))
            responses = call(iter(outbox.get, None))
            try:
                for message in responses:
                    welcomed = True
                    for answer in self._answers(message, channel):
                        outbox.put(answer)
                    if self._finished:
                        outbox.put(None)
            except grpc.RpcError:
                if not welcomed:
                    raise
            finally:
                outbox.put(None)
                responses.cancel()  # type: ignore[no-untyped-call]
        return welcomed

    def _hello(self) -> pb.Hello:
        held = [int(path.stem.removeprefix("round-")) for path in self._folder.checkpoints.glob("round-*.json")]
        return pb.Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            federation=self._plan.invitation.federation if self._plan.invitation else self._plan.federation,
            site=self._plan.name,
            run=self._run,
            rounds_held=held,
            incarnation=self._position[0],
            round=self._position[1],
            restart=self._plan.restart and not self._ready,
            session=self._session,
        )

    def _answers(self, message: pb.FromServer, channel: grpc.Channel) -> Iterator[pb.FromSite]:
        kind = message.WhichOneof("body")
        if kind == "welcome":
            self._enter(message.welcome, channel)
        elif kind == "refusal":
            raise Refused(message.refusal.code, message.refusal.text)
        elif kind == "begin":
            yield self._start(message.begin)
        elif kind == "reply":
            yield self._go_on(message.reply)
        elif kind == "finished":
            self._end(message.finished.rounds)
            yield pb.FromSite(leaving=pb.Leaving())

    # before the first round

    def _enter(self, welcome: pb.Welcome, channel: grpc.Channel) -> None:
        """Checks what the server announces and builds the client's half; once per process."""
        if self._ready:
            if welcome.run != self._run:
                raise Refused(Code.OTHER_RUN, "the server has started another run.")
            return
        config = _checked_settings(welcome.settings)
        task = Task(welcome.dataset, tuple(welcome.input_shape), welcome.n_classes)
        expected = self._plan.invitation.public_sha256 if self._plan.invitation else None
        if expected is not None and welcome.public_sha256 != expected:
            raise Refused(
                Code.PUBLIC_SET, "the server announces another public set than the invitation. Ask its operator."
            )
        dtype = DTYPES[config.precision]
        public_x = _fetch_public(channel, welcome)
        public = Samples(public_x, dtype)
        data = load_npz(self._plan.data, n_classes=task.n_classes)
        if data.sample_shape != task.input_shape:
            raise DataError(
                f"{self._plan.data}: samples of shape {data.sample_shape}; this federation has {task.input_shape}."
            )
        if len(data.train_y) < MIN_SAMPLES:
            raise DataError(
                f"{self._plan.data}: {len(data.train_y)} training samples; expected at least {MIN_SAMPLES}."
            )
        if shared := _count_shared(data.train_x, public_x):
            self._tell(f"warning: {shared} own samples are in the public set too, where everybody can see them.")
        name = self._plan.name
        model = model_of(config, name, None, task) if self._plan.model == "auto" else self._plan.model
        own = self._plan.own if self._plan.own is not None else _own_model(config, task, name, model)
        self._learner = build_learner(config, task, name, model, public, own)
        width = refuse_misfits(config.method_object(), {name: self._learner}, {name: model})
        if width != welcome.feature_width:
            raise ConfigError(f"{model} has {width} features; this federation compares {welcome.feature_width}.")
        stream = BatchStream(len(data.train_y), config.batch_size, config.seed, "private", name)
        labels = torch.as_tensor(data.train_y)
        private = PrivateData(
            Samples(data.train_x, dtype), labels, np.arange(len(data.train_y)), task.n_classes, stream, config.tau
        )
        self._logic = build_client(config, name, self._learner, private, public)
        self._reader = Reader(config.method_object().down, axis_lengths(config, task, width), dtype)
        self._tests = Samples(data.test_x, dtype), torch.as_tensor(data.test_y)
        self._total = welcome.total_rounds
        newest = load_newest(self._folder.checkpoints, self._tell)
        if newest is None:
            self._save(0)
        else:
            self._load(*newest)
        self._run, self._ready = welcome.run, True
        write_json(self._about, {"run": welcome.run, "site": name})
        self._tell(f"joined {self._plan.server} as {name}: {config.method}, {model}, {len(data.train_y)} own samples")

    # rounds

    def _start(self, begin: pb.Begin) -> pb.FromSite:
        if self._position == (begin.incarnation, begin.round) and self._sent is not None:
            return self._sent  # asked twice: the same answer
        self._sit_out()
        if begin.restore:
            self._return_to(begin.round)
        self._begin, self._position, self._exchange = begin, (begin.incarnation, begin.round), 0
        self._round = self._logic.round(begin.round)
        return self._advance(None)

    def _go_on(self, reply: pb.Reply) -> pb.FromSite:
        if (reply.incarnation, reply.round) != self._position or self._sent is None:
            raise Refused(Code.WRONG_ROUND, "a reply of another round.")
        if self._round is None or reply.exchange + 1 == self._exchange:
            return self._sent  # replied twice: the same answer
        if reply.exchange != self._exchange:
            raise Refused(Code.WRONG_EXCHANGE, f"a reply to exchange {reply.exchange}; expected {self._exchange}.")
        message = self._reader.read(reply.payload)
        self._exchange += 1
        return self._advance(message)

    def _advance(self, reply: Message | None) -> pb.FromSite:
        """Runs the client's half to its next upload or to the end of its round."""
        assert self._round is not None
        answer = pb.FromSite()
        try:
            upload = next(self._round) if reply is None else self._round.send(reply)
        except StopIteration:
            self._round, self._rounds = None, self._begin.round + 1
            answer.done.MergeFrom(self._ended())
            body: pb.Done | pb.Upload = answer.done
        else:
            encode(upload, answer.upload.payload)
            if self._logic._public is not None and upload.about_batch:
                answer.upload.batch = self._logic._public.drawn or ""
            body = answer.upload
        body.incarnation, body.round, body.exchange = *self._position, self._exchange
        self._sent = answer
        return answer

    def _ended(self) -> pb.Done:
        done = pb.Done(saved=self._begin.save)
        if self._begin.save:
            self._save(self._rounds)
        if self._begin.report:
            samples, labels = self._tests
            value = accuracy(self._learner, samples, labels, torch.arange(len(labels)))
            self._tell(f"round {self._rounds} of {self._total}: own test accuracy {value:.4f}")
            if self._plan.share_metrics:
                done.metrics["test_accuracy"] = value
        return done

    def _sit_out(self) -> None:
        if self._round is not None:
            self._round.close()
            self._round = None
        self._logic.learner.forget()

    def _end(self, rounds: int) -> None:
        self._sit_out()
        if self._rounds != rounds:
            self._return_to(rounds)
        if self._plan.save is not None:
            save_model(self._plan.save, self._learner.state_dict())
        self._finished = True
        self._tell(f"finished after {rounds} rounds" + (f": {self._plan.save}" if self._plan.save else ""))

    # state

    def _save(self, rounds: int) -> None:
        state = {"learner": self._logic.learner.state_dict(), "method": self._logic.state_dict()}
        save_checkpoint(self._folder.checkpoints, rounds, state)

    def _load(self, rounds: int, state: dict[str, Any]) -> None:
        self._logic.learner.load_state_dict(state["learner"])
        self._logic.load_state_dict(state["method"])
        self._rounds = rounds

    def _return_to(self, rounds: int) -> None:
        path = self._folder.checkpoints / f"round-{rounds:07}.json"
        if self._plan.restart and not path.exists() and self._position == (0, 0):
            self._save(rounds)  # the operator's word: this fresh start stands for the lost state
        try:
            self._load(*load_checkpoint(path))
        except CheckpointError as error:
            raise Refused(Code.STATE_LOST, f"{error} The federation returns to round {rounds}.") from None


def _run_of(path: Path) -> str:
    """The run whose state the site holds."""
    try:
        return str(json.loads(path.read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


def _own_model(config: Config, task: Task, client: str, name: str) -> nn.Module | Learner | None:
    """What the site's own factory makes, a module or a learner of any framework; None for a model of the table."""
    if not is_import_path(name):
        return None
    with torch_seeded(config.seed, "weights", client):
        made: nn.Module | Learner = call_any_factory(name, load_factory(name), task.input_shape, task.n_classes)
    return made


def _checked_settings(text: str) -> Config:
    """The server's settings as a config of this site; refuses unknown keys and whatever names code."""
    try:
        values = json.loads(text)
        unknown = sorted(set(values) - set(SETTINGS))
    except (ValueError, TypeError) as error:
        raise Refused(Code.SETTINGS, f"the server's settings cannot be read ({error}).") from None
    if unknown:
        raise Refused(Code.SETTINGS, f"the server sets {unknown[0][:40]!r}, which is this site's to decide.")
    code = named_code(values)
    if code:
        raise Refused(Code.NAMES_CODE, f"the server names code, {code[0][:80]!r}; a site imports only its own.")
    try:
        return Config(**values)
    except FedalError as error:
        raise Refused(Code.SETTINGS, f"the server's settings do not fit this release: {error}") from None


def _fetch_public(channel: grpc.Channel, welcome: pb.Welcome) -> NDArray[np.float32]:
    """The public set, verified; its size is known and bounded before the first byte is asked for."""
    shape = (welcome.public_samples, *welcome.input_shape)
    size = 4 * math.prod(shape)
    if not 0 < size <= MAX_PUBLIC_BYTES:
        raise Refused(Code.PUBLIC_SET, f"a public set of {size} bytes; the limit is {MAX_PUBLIC_BYTES}.")
    call = channel.unary_stream(f"/{SERVICE}/PublicSet", pb.PublicSetRequest.SerializeToString, pb.Chunk.FromString)
    raw = bytearray()
    for chunk in call(pb.PublicSetRequest()):
        if len(chunk.data) > CHUNK_BYTES or len(raw) + len(chunk.data) > size:
            raise Refused(Code.PUBLIC_SET, f"more than the announced {size} bytes of public set.")
        raw += chunk.data
    if len(raw) != size:
        raise Refused(Code.PUBLIC_SET, f"{len(raw)} bytes of public set; announced were {size}.")
    public_x = np.frombuffer(bytes(raw), np.float32).reshape(shape)
    if manifest(public_x) != welcome.public_sha256 or not np.isfinite(public_x).all():
        raise Refused(Code.PUBLIC_SET, "the public set is not the one of the invitation.")
    return public_x.copy()


def _count_shared(own: NDArray[Any], public: NDArray[np.float32]) -> int:
    """How many samples of one set are in the other, to the bit."""

    def digests(x: NDArray[Any]) -> Iterator[bytes]:
        return (hashlib.blake2b(sample.astype(np.float32).tobytes()).digest() for sample in x)

    known = set(digests(public))
    return sum(digest in known for digest in digests(own))


def join(plan: SitePlan, tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)) -> None:
    refuse_windows()
    Site(plan, tell).play()
