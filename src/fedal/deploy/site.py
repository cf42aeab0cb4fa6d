"""A site of a deployed federation: its own model, its own data, one stream to the server."""

from __future__ import annotations

import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import grpc
import torch
from google.protobuf.message import DecodeError

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.best import BestState, KeptState, is_judged
from fedal.deploy.channel import PROTOCOL_MAJOR, PROTOCOL_MINOR, SERVICE, open_channel, reason_of, refusal_of
from fedal.deploy.codec import encode
from fedal.deploy.entering import Membership, SitePlan, enter
from fedal.deploy.patience import Patience
from fedal.deploy.pki.pinning import Version, list_version
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.site_state import SiteState, refuse_unwritable
from fedal.durable import private_mode
from fedal.errors import DataError, FedalError
from fedal.machine import refuse_windows
from fedal.messages import Message
from fedal.metrics import METRICS
from fedal.records.checkpoint import model_digest, save_model
from fedal.user_code import explained

MAX_MESSAGE_BYTES = 1 << 28
TOO_LARGE = "larger than max"  # in gRPC's reason for a message beyond that
STEADY_S = 5.0  # a connection that lasted this long was a good one
LIST_CHECK_S = 0.5  # how often a site looks whether its revocation list has changed
WATCHER = "revocation list"  # the thread that looks
JOIN_AGAIN = (Code.UNREACHABLE, Code.IN_USE, Code.BUSY, Code.WRONG_INCARNATION, Code.WRONG_ROUND, Code.WRONG_EXCHANGE)
"""Temporary obstacles: the server is unreachable, holds the place of our previous process, or has gone back."""


class Site:
    """One client process."""

    def __init__(self, plan: SitePlan, notify: Callable[[str], None]) -> None:
        self._plan, self._notify = plan, notify
        self._state = SiteState(plan, notify)
        self._session = secrets.token_hex(16)
        self._position = (0, 0)  # incarnation and round of the newest Begin
        self._exchange = 0
        self._begin = pb.Begin()
        self._in_round = False
        self._sent: pb.FromSite | None = None
        self._member: Membership | None = None
        self._list_version: Version | None = None  # of the revocation list, when the server was checked
        self._before: dict[str, float] = {}  # the site's metrics before the first step
        self._kept: KeptState | None = None  # with --keep-best
        self._behind = False  # the others saved rounds without us
        self._finished = False
        self._failure: Refused | None = None  # to be raised when the server knows that we leave

    def run(self) -> None:
        """Takes part until the run is finished. Waits for an unreachable server."""
        torch.set_num_threads(1)  # 1 and 2 intra-op threads give different bits
        if not self._plan.data.exists():
            raise DataError(f"{self._plan.data}: no such file.")
        if self._plan.save is not None:
            refuse_unwritable(self._plan.save)  # now, not after training
        with self._state.open():
            try:
                self._run_streams()
            except FedalError:
                if self._member is not None:
                    self._write_best()
                if self._state.rounds:
                    self._notify(f"stopped: the state after {self._state.rounds} rounds is in {self._plan.state}")
                raise

    def _run_streams(self) -> None:
        patience = Patience(self._plan.patience_s, self._notify)
        while not self._finished:
            obstacle: Refused | None = None
            try:
                if self._run_stream():
                    patience.progress()
                else:
                    obstacle = Refused(Code.UNREACHABLE, f"{self._plan.server} ends the connection without a request.")
            except grpc.RpcError as error:
                text = f"no connection to {self._plan.server} ({reason_of(error)}). Is the server running?"
                obstacle = Refused(Code.UNREACHABLE, text)
            except Refused as refused:
                if refused.code not in JOIN_AGAIN:
                    raise
                obstacle = refused
            if not self._finished:
                patience.wait(obstacle)
        if self._failure is not None:
            raise self._failure

    def _run_stream(self) -> bool:
        """Runs one stream, from Hello to its end. Returns whether it led anywhere: to a request, or a long wait."""
        began, welcomed, requests = time.monotonic(), False, 0
        self._list_version = list_version(self._plan.invitation)
        with open_channel(self._plan.server, self._plan.invitation, MAX_MESSAGE_BYTES) as channel:
            outbox: queue.SimpleQueue[pb.FromSite | None] = queue.SimpleQueue()
            call = channel.stream_stream(
                f"/{SERVICE}/Join", pb.FromSite.SerializeToString, _parsed
            )  # fmt: skip
            outbox.put(pb.FromSite(hello=self._hello()))
            responses = call(iter(outbox.get, None))
            closed = threading.Event()
            watcher = threading.Thread(target=self._watch_list, args=(responses, closed), name=WATCHER, daemon=True)
            watcher.start()
            try:
                for message in responses:
                    welcomed = True
                    for answer in self._answers(message, channel):
                        outbox.put(answer)
                        requests += 1
                    if self._finished:
                        outbox.put(None)
            except grpc.RpcError as error:
                if refused := refusal_of(error):
                    raise refused from None
                if TOO_LARGE in reason_of(error):
                    raise Refused(Code.WRONG_LENGTH, f"a message of over {MAX_MESSAGE_BYTES} bytes.") from None
                if not welcomed:
                    raise
            finally:
                closed.set()
                watcher.join()  # or it could free this site's models last, in an interpreter that shuts down: an abort
                outbox.put(None)
                responses.cancel()  # type: ignore[no-untyped-call]
        return requests > 0 or time.monotonic() - began > STEADY_S

    def _watch_list(self, responses: grpc.Call, closed: threading.Event) -> None:
        """Ends the stream when the revocation list changes, also while the site waits: the next checks it."""
        while not closed.wait(LIST_CHECK_S):
            if list_version(self._plan.invitation) != self._list_version:
                responses.cancel()  # type: ignore[no-untyped-call]
                return

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            federation=self._plan.invitation.federation if self._plan.invitation else self._plan.federation,
            site=self._plan.name,
            run=self._state.run,
            rounds_held=self._state.held(),
            incarnation=self._position[0],
            round=self._position[1],
            restart=self._plan.restart and self._member is None,
            session=self._session,
        )

    def _answers(self, message: pb.FromServer | bytes, channel: grpc.Channel) -> Iterator[pb.FromSite]:
        if isinstance(message, bytes):
            raise Refused(Code.NOT_A_MESSAGE, f"{len(message)} bytes that are not a message of this protocol.")
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
        else:
            raise Refused(Code.UNEXPECTED, "a kind of message that this release does not have.")

    def _enter(self, welcome: pb.Welcome, channel: grpc.Channel) -> None:
        """Builds this site's half of the run, once per process."""
        self._behind = welcome.behind
        if self._member is not None:
            if welcome.run != self._state.run:
                raise Refused(Code.OTHER_RUN, "the server has started another run.")
            return
        with explained("joining", grpc.RpcError):
            self._member = member = enter(self._plan, welcome, channel, self._notify)
            self._untrained = model_digest(member.learner.state_dict())
        if self._plan.save is not None:  # for the model card: as the owner brought it, whatever the state holds
            self._before = self._own_metrics(every=True)
        samples = len(member.judged_on[1])
        brought = self._accuracy() if samples else 0.0
        self._best = BestState(self._state.best, samples, member.rounds, self._notify, brought)
        if self._plan.keep_best is not None:
            self._kept = KeptState(self._state.kept, self._plan.keep_best, self._notify)
        self._state.enter(member.player, welcome.run)
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
        if begin.round >= self._in.rounds:
            raise Refused(Code.CONTRACT, f"the server begins round {begin.round + 1} of {self._in.rounds}.")
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
        with explained(f"round {self._begin.round}, exchange {self._exchange}"):
            said = self._in.player.take()
        if said is None:
            self._in_round, self._state.rounds = False, self._begin.round + 1
            answer.done.MergeFrom(self._ended())
            body: pb.Done | pb.Upload = answer.done
        else:
            message = said.uploads[self._plan.name]
            if type(message) not in self._in.sends:
                kind = type(message).__name__
                raise Refused(Code.UNDECLARED, f"this site's method would send {kind}, which it does not declare.")
            encode(cast(Message, message), answer.upload.payload)
            answer.upload.batch = said.batch or ""
            body = answer.upload
        body.incarnation, body.round, body.exchange = *self._position, self._exchange
        self._sent = answer
        return answer

    def _ended(self) -> pb.Done:
        done, rounds = pb.Done(saved=self._begin.save), self._state.rounds
        if self._begin.save:
            self._state.save(rounds)
            self._behind = False
        found: dict[str, float] = {}
        if self._begin.report:
            found = self._own_metrics(every=self._plan.share_metrics)  # the others would cost every round's time
            self._notify(f"round {rounds} of {self._in.rounds}: local test accuracy {found['test_accuracy']:.4f}")
            if self._plan.share_metrics:  # the server takes shares only: no log loss
                done.metrics.update({name: value for name, value in found.items() if 0 <= value <= 1})
        if self._best.is_due():
            tested = found.get("test_accuracy") if self._in.judged_on is self._in.tests else None
            self._best.measured(rounds, self._accuracy() if tested is None else tested, self._state.current)
        if self._kept and is_judged(rounds, self._in.rounds):
            value = self._judgement(self._plan.keep_best or "accuracy")
            if value is not None:
                self._kept.offer(rounds, value, self._state.current)
        if self._begin.save:
            self._write_best()
        return done

    def _write_best(self) -> None:
        self._best.write()
        if self._kept:
            self._kept.write()

    def _own_metrics(self, *, every: bool) -> dict[str, float]:
        with explained(f"testing after round {self._state.rounds}"):
            return self._in.own_metrics(every=every)

    def _accuracy(self) -> float:
        """By which the site judges the server."""
        accuracy = self._judgement("accuracy")
        assert accuracy is not None, "accuracy is always defined"
        return accuracy

    def _judgement(self, metric: str) -> float | None:
        with explained(f"measuring the {metric} after round {self._state.rounds}"):
            return self._in.judgement(metric)

    def _end(self, rounds: int) -> None:
        if rounds != self._in.rounds:
            raise Refused(
                Code.NOT_FINISHED,
                f"the server ends the run after {rounds} of {self._in.rounds} rounds. Nothing is saved as trained.",
            )
        self._in.player.forget()
        if self._state.rounds != rounds and self._state.is_damaged(rounds):
            self._notify(f"warning: using the state after round {self._state.rounds}, the newest that is intact.")
        elif self._state.rounds != rounds:
            self._return_to(rounds)
        self._finished = True
        if model_digest(self._in.learner.state_dict()) == self._untrained:
            self._failure = Refused(
                Code.UNTRAINED, f"the run ended after {rounds} rounds without this site: its model was never trained."
            )
            return
        self._write_best()
        instead = self._best_instead()
        if self._best.brought and self._best.is_ruined(accuracy := self._accuracy()):
            self._failure = Refused(Code.UNTRAINED, self._ruined(accuracy))
            return
        if self._plan.save is not None:
            self._save(self._plan.save, self._state.rounds)
        self._notify(f"finished after {rounds} rounds{instead}" + (f": {self._plan.save}" if self._plan.save else ""))
        if self._kept and self._plan.save is not None:
            self._save_kept(self._kept, self._plan.save.with_suffix(f".best{self._plan.save.suffix}"))

    def _save(self, path: Path, rounds: int) -> None:
        """Writes the model and, next to it, what it is."""
        about = path.with_suffix(".json")
        self._save_model(path)
        self._in.about(rounds, self._own_metrics(every=True), self._before).write(about, private_mode(about))

    def _save_kept(self, kept: KeptState, path: Path) -> None:
        """Writes the model that is best by the metric of `--keep-best`. It becomes the current one: nothing follows."""
        words = METRICS[self._plan.keep_best or "accuracy"].words
        if kept.value is None or (state := kept.state()) is None:
            self._notify(f"warning: no best model is saved: {words} has no value on this site's held-out data.")
            return
        self._state.load(kept.rounds, state)
        self._save(path, kept.rounds)
        self._notify(f"best {words} on this site's held-out data, {kept.value:.4f} after round {kept.rounds}: {path}")

    def _best_instead(self) -> str:
        """Returns to the site's best state if the final one is far below; says so."""
        if self._best.value is None:  # never measured
            return ""
        accuracy = self._accuracy()
        if not self._best.is_far_above(accuracy) or (state := self._best.state()) is None:
            return ""
        final = self._save_aside()
        self._state.load(self._best.rounds, state)
        return (
            f", with the model of round {self._best.rounds}: its accuracy on this site's held-out data is "
            f"{self._best.value:.4f}, that of the final model{final} only {accuracy:.4f}"
        )

    def _ruined(self, accuracy: float) -> str:
        """Why no model is saved as trained."""
        return (
            f"the accuracy on this site's held-out data is {accuracy:.4f} after {self._state.rounds} rounds"
            f"{self._save_aside()}, far below the {self._best.brought:.4f} of the model that it brought. Nothing is "
            "saved as trained."
        )

    def _save_aside(self) -> str:
        """Saves a model that is not the result, if a file was asked for; says where."""
        if self._plan.save is None:
            return ""
        path = self._plan.save.with_suffix(f".final{self._plan.save.suffix}")
        self._save_model(path)
        return f" ({path})"

    def _save_model(self, path: Path) -> None:
        """Saves the model, which private data have taught, closed to others as the state folder is."""
        save_model(path, self._in.learner.state_dict(), private_mode(path))

    def _return_to(self, rounds: int) -> None:
        fresh = self._plan.restart and self._position == (0, 0)  # the operator allowed it in place of the lost state
        self._state.return_to(rounds, behind=self._behind, fresh=fresh)


def _parsed(raw: bytes) -> pb.FromServer | bytes:
    """The message; the bytes themselves if they are none. gRPC would turn an exception into a broken connection."""
    try:
        return pb.FromServer.FromString(raw)
    except DecodeError:
        return raw


def _print(text: str) -> None:
    """Prints a line in one write, so that the lines of sites that share a terminal stay whole."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def join(plan: SitePlan, notify: Callable[[str], None] = _print) -> None:
    refuse_windows()
    Site(plan, notify).run()
