"""A site of a deployed federation: its own model, its own data, one stream to the server."""

from __future__ import annotations

import queue
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import grpc
import torch

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import PROTOCOL_MAJOR, PROTOCOL_MINOR, SERVICE, open_channel, reason_of
from fedal.deploy.codec import encode
from fedal.deploy.entering import Membership, SitePlan, enter
from fedal.deploy.refusals import Code, Refused
from fedal.errors import CheckpointError, DataError
from fedal.learners.base import State
from fedal.machine import refuse_windows
from fedal.messages import Message
from fedal.records.checkpoint import load_checkpoint, load_newest, save_checkpoint, save_model
from fedal.records.folder import RunFolder, read_json, write_json

MAX_MESSAGE_BYTES = 1 << 28
RETRY_S = (0.2, 0.5, 1.0, 2.0)
JOIN_AGAIN = (Code.IN_USE, Code.WRONG_INCARNATION, Code.WRONG_ROUND, Code.WRONG_EXCHANGE)
"""Temporary refusals: the server still holds the seat for our previous process, or has gone back a few rounds."""


class Site:
    """One client process."""

    def __init__(self, plan: SitePlan, notify: Callable[[str], None]) -> None:
        self._plan, self._notify = plan, notify
        self._folder = RunFolder(plan.state)
        self._about = plan.state / "site.json"
        self._session = secrets.token_hex(16)
        self._run = ""
        self._position = (0, 0)  # incarnation and round of the newest Begin
        self._exchange = 0
        self._begin = pb.Begin()
        self._in_round = False
        self._sent: pb.FromSite | None = None
        self._member: Membership | None = None
        self._behind = False  # the others saved rounds without us
        self._finished = False
        self._rounds = 0

    def run(self) -> None:
        """Takes part until the run is finished. Waits for an unreachable server."""
        torch.set_num_threads(1)  # 1 and 2 intra-op threads give different bits
        if not self._plan.data.exists():
            raise DataError(f"{self._plan.data}: no such file.")
        self._folder.create()
        if self._plan.save is not None:
            RunFolder(self._plan.save.parent).create()  # fail now, not after training
        with self._folder.locked():
            if self._plan.restart:
                for path in [self._about, *self._folder.checkpoints.glob("round-*")]:
                    path.unlink(missing_ok=True)
            if self._about.exists():
                self._run = _run_of(self._about)
            lost_at, attempt, notified = time.monotonic(), 0, False
            while not self._finished:
                obstacle: Refused | None = None
                try:
                    if self._run_stream():
                        lost_at, attempt, notified = time.monotonic(), 0, False
                except grpc.RpcError as error:
                    text = f"no connection to {self._plan.server} ({reason_of(error)}). Is the server running?"
                    obstacle = Refused(Code.UNREACHABLE, text)
                except Refused as refused:
                    if refused.code not in JOIN_AGAIN:
                        raise
                    obstacle = refused
                if obstacle is not None and time.monotonic() - lost_at > self._plan.patience_s:
                    raise obstacle
                if obstacle is not None and not notified:
                    self._notify(f"{obstacle.text} Trying again.")
                    notified = True
                if not self._finished:
                    time.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                    attempt += 1

    def _run_stream(self) -> bool:
        """Runs one stream, from Hello to its end. Returns whether the server admitted us."""
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
            restart=self._plan.restart and self._member is None,
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
            yield self._continue(message.reply)
        elif kind == "probe":
            yield pb.FromSite(alive=pb.Alive())
        elif kind == "finished":
            self._end(message.finished.rounds)
            yield pb.FromSite(leaving=pb.Leaving())

    def _enter(self, welcome: pb.Welcome, channel: grpc.Channel) -> None:
        """Builds this site's half of the run, once per process."""
        self._behind = welcome.behind
        if self._member is not None:
            if welcome.run != self._run:
                raise Refused(Code.OTHER_RUN, "the server has started another run.")
            return
        self._member = member = enter(self._plan, welcome, channel, self._notify)
        newest = load_newest(self._folder.checkpoints, self._notify)
        if newest is None:
            self._save(0)
        else:
            self._load(*newest)
        self._run = welcome.run
        write_json(self._about, {"run": welcome.run, "site": self._plan.name})
        self._notify(f"joined {self._plan.server} as {self._plan.name}: {member.summary}")

    @property
    def _in(self) -> Membership:
        """The membership. Raises Refused if the server sends a request before its welcome."""
        if self._member is None:
            raise Refused(Code.UNEXPECTED, "a request before the welcome.")
        return self._member

    # rounds

    def _start(self, begin: pb.Begin) -> pb.FromSite:
        if self._position == (begin.incarnation, begin.round) and self._sent is not None:
            return self._sent  # a repeated request: resend the answer
        self._in.player.forget()
        if begin.restore:
            self._return_to(begin.round)
        self._begin, self._position, self._exchange = begin, (begin.incarnation, begin.round), 0
        self._in.player.begin(begin.round)
        self._in_round = True
        return self._advance()

    def _continue(self, reply: pb.Reply) -> pb.FromSite:
        if (reply.incarnation, reply.round) != self._position or self._sent is None:
            raise Refused(Code.WRONG_ROUND, "a reply for another round.")
        if not self._in_round or reply.exchange + 1 == self._exchange:
            return self._sent  # a repeated reply: resend the answer
        if reply.exchange != self._exchange:
            raise Refused(Code.WRONG_EXCHANGE, f"a reply to exchange {reply.exchange}; expected {self._exchange}.")
        self._in.player.give({self._plan.name: self._in.reader.read(reply.payload)})
        self._exchange += 1
        return self._advance()

    def _advance(self) -> pb.FromSite:
        """Runs the client's half to its next upload or to the end of its round."""
        answer = pb.FromSite()
        said = self._in.player.take()
        if said is None:
            self._in_round, self._rounds = False, self._begin.round + 1
            answer.done.MergeFrom(self._ended())
            body: pb.Done | pb.Upload = answer.done
        else:
            encode(cast(Message, said.uploads[self._plan.name]), answer.upload.payload)
            answer.upload.batch = said.batch or ""
            body = answer.upload
        body.incarnation, body.round, body.exchange = *self._position, self._exchange
        self._sent = answer
        return answer

    def _ended(self) -> pb.Done:
        done = pb.Done(saved=self._begin.save)
        if self._begin.save:
            self._save(self._rounds)
            self._behind = False
        if self._begin.report:
            value = self._in.own_accuracy()
            self._notify(f"round {self._rounds} of {self._in.rounds}: local test accuracy {value:.4f}")
            if self._plan.share_metrics:
                done.metrics["test_accuracy"] = value
        return done

    def _end(self, rounds: int) -> None:
        self._in.player.forget()
        if self._rounds != rounds:
            self._return_to(rounds)
        if self._plan.save is not None:
            save_model(self._plan.save, self._in.learner.state_dict())
        self._finished = True
        self._notify(f"finished after {rounds} rounds" + (f": {self._plan.save}" if self._plan.save else ""))

    # state

    def _save(self, rounds: int) -> None:
        save_checkpoint(self._folder.checkpoints, rounds, self._in.player.states()[self._plan.name]())

    def _load(self, rounds: int, state: State) -> None:
        self._in.player.load_states({self._plan.name: state})
        self._rounds = rounds

    def _return_to(self, rounds: int) -> None:
        path = self._folder.checkpoints / f"round-{rounds:07}.json"
        if self._plan.restart and not path.exists() and self._position == (0, 0):
            self._save(rounds)  # the operator allowed a fresh start in place of the lost state
        if self._behind and not path.exists() and (newest := load_newest(self._folder.checkpoints, self._notify)):
            self._load(*newest)  # the others saved rounds without us: we continue where we left off
            self._save(rounds)
        try:
            self._load(*load_checkpoint(path))
        except CheckpointError as error:
            raise Refused(Code.STATE_LOST, f"{error} The federation returns to round {rounds}.") from None


def _run_of(path: Path) -> str:
    """The id of the run whose state the site holds."""
    return read_json(path, lambda found: str(found["run"]))


def _print(text: str) -> None:
    """Prints a line in one write, so that the lines of sites that share a terminal stay whole."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def join(plan: SitePlan, notify: Callable[[str], None] = _print) -> None:
    refuse_windows()
    Site(plan, notify).run()
