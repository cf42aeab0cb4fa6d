"""Admission comes before resources: whatever one certificate does, the other sites find their places free."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments import SITES, Rehearsal, Stranger, certs, grpc, pb, wait_for
from fedal.deploy import channel as channels
from fedal.deploy import refusal_log
from fedal.deploy.admission import QUOTA
from fedal.deploy.channel import SERVICE, ask_status, open_channel, refusal_of
from fedal.deploy.refusal_log import LINES, RefusalLog
from fedal.deploy.refusals import Code, Refused

pytestmark = pytest.mark.processes  # sockets

MANY = 32  # more calls than all sites of the roster could have open


def unread(stack: ExitStack, rehearsal: Rehearsal, invitation: Any, calls: int) -> list[Any]:
    """Calls that ask for the public set and read none of it, over several connections.

    Their windows stay at 64 kB. By default gRPC measures the connection and widens them, on a busy machine so far that
    it takes the whole set for a caller that reads nothing, and the call ends at the server.
    """
    opened = []
    for _ in range(0, calls, QUOTA):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(channels, "KEEPALIVE", [*channels.KEEPALIVE, ("grpc.http2.bdp_probe", 0)])
            channel = stack.enter_context(open_channel(rehearsal.address, invitation))
        grpc.channel_ready_future(channel).result(60)  # calls end at once if the first attempt to connect fails
        ask = channel.unary_stream(f"/{SERVICE}/PublicSet", pb.PublicSetRequest.SerializeToString, pb.Chunk.FromString)
        opened += [ask(pb.PublicSetRequest()) for _ in range(QUOTA)]
    return opened


def with_large_public_set(folder: Path) -> Rehearsal:
    """16 MB, more than gRPC sends ahead into a window of 64 kB."""
    rehearsal = Rehearsal(folder, export=False)
    rows = (1 << 24) // rehearsal.plan.public_x[0].nbytes
    large = np.resize(rehearsal.plan.public_x, (rows, *rehearsal.plan.public_x.shape[1:]))
    rehearsal.plan = replace(rehearsal.plan, public_x=large)
    return rehearsal


@contextmanager
def silent_streams(rehearsal: Rehearsal, invitation: Any) -> Iterator[list[Stranger]]:
    """Many streams that say nothing, not even Hello."""
    opened = [Stranger(rehearsal.address, invitation) for _ in range(MANY)]
    time.sleep(0.5)
    yield opened
    for each in opened:
        each.close()


def test_a_revoked_certificate_locks_nobody_out(tmp_path: Path) -> None:
    """Also not the new certificate of the same site."""
    rehearsal = Rehearsal(tmp_path, rounds=1)
    stolen = replace(rehearsal.invitation("client-00"), folder=None)
    certs.revoke(tmp_path / "certs", "client-00")
    certs.issue_client(tmp_path / "certs", "client-00", rehearsal.plan.public_sha256)
    events: list[dict[str, Any]] = []
    with (
        rehearsal.service(lambda event, **fields: events.append({"event": event, **fields})) as service,
        silent_streams(rehearsal, stolen) as streams,
    ):
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
        assert {stream.refusal() for stream in streams} == {Code.REVOKED}, "although they said nothing"
        refused = [event for event in events if event["event"] == "refused"]
        assert {(event["site"], event["code"]) for event in refused} == {("client-00", Code.REVOKED)}
        assert len(refused) == LINES and service.callbacks.refusals.counts["client-00"] == MANY
    assert rehearsal.deployed() == rehearsal.alone()


def test_a_site_that_holds_many_calls_holds_only_its_own(tmp_path: Path) -> None:
    rehearsal = with_large_public_set(tmp_path)
    with rehearsal.service() as service, ExitStack() as stack:
        calls = unread(stack, rehearsal, rehearsal.invitation("client-00"), MANY)
        wait_for(lambda: service.callbacks.refusals.counts["client-00"] == MANY - QUOTA)
        others = {site: stack.enter_context(open_stream(rehearsal, site)) for site in SITES[1:]}
        for site, stranger in others.items():
            stranger.hello(site)
            assert stranger.receive().WhichOneof("body") == "welcome"
        with open_channel(rehearsal.address, rehearsal.invitation("operator")) as channel:
            status = ask_status(channel, 10)
        assert {site.site: site.refused for site in status.sites} == {"client-00": MANY - QUOTA} | dict.fromkeys(
            SITES[1:], 0
        )
        own = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        assert own.refusal() == Code.BUSY
        own.close()
        for call in calls:  # they live as long as someone holds them
            call.cancel()


@contextmanager
def open_stream(rehearsal: Rehearsal, site: str) -> Iterator[Stranger]:
    stranger = Stranger(rehearsal.address, rehearsal.invitation(site))
    yield stranger
    stranger.close()


def test_a_call_that_ended_frees_its_place(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with (
        rehearsal.service() as service,
        open_channel(rehearsal.address, rehearsal.invitation("client-00")) as channel,
    ):
        ask = channel.unary_stream(f"/{SERVICE}/PublicSet", pb.PublicSetRequest.SerializeToString, pb.Chunk.FromString)
        for number in range(3 * QUOTA):
            call = ask(pb.PublicSetRequest())
            if number % 2:
                call.cancel()  # in the middle
            else:
                assert b"".join(chunk.data for chunk in call) == rehearsal.plan.public_x.tobytes()
            wait_for(lambda: not service.grpc_server._admission._open)


def test_the_public_set_is_in_memory_once(tmp_path: Path) -> None:
    """Sixteen calls read nothing; a copy for each would be 256 MB."""
    rehearsal = with_large_public_set(tmp_path)
    with rehearsal.service() as service, ExitStack() as stack:
        tracemalloc.start()  # our memory: gRPC's own buffers are at both ends of this process
        calls = [unread(stack, rehearsal, rehearsal.invitation(caller), QUOTA) for caller in (*SITES, "operator")]
        wait_for(lambda: sum(service.grpc_server._admission._open.values()) == len(calls) * QUOTA)
        time.sleep(0.5)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_site_sees_its_own_line_of_the_status_and_only_numbers_about_the_others(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service() as service:
        stranger = Stranger(rehearsal.address, rehearsal.invitation("stranger"))
        assert stranger.refusal() == Code.NOT_IN_ROSTER
        stranger.close()
        wait_for(lambda: service.callbacks.missing)
        for caller in ("client-01", "operator"):
            with open_channel(rehearsal.address, rehearsal.invitation(caller)) as channel:
                status = ask_status(channel, 10)
            assert (status.connected, status.roster) == (0, 3)
            if caller == "operator":
                assert [(o.name, o.refused) for o in status.outsiders] == [("stranger", 1)]
                assert [line.site for line in status.sites] == list(SITES)
                assert status.state == "waiting for client-00, client-01, client-02"
            else:
                assert [line.site for line in status.sites] == ["client-01"] and not status.outsiders
                assert status.state == "waiting for 3 sites"


def test_the_process_of_a_revoked_certificate_loses_its_seat_to_the_new_one(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service():
        first = Stranger(rehearsal.address, replace(rehearsal.invitation("client-00"), folder=None))
        first.hello("client-00")
        assert first.receive().WhichOneof("body") == "welcome"
        certs.revoke(tmp_path / "certs", "client-00")
        certs.issue_client(tmp_path / "certs", "client-00", rehearsal.plan.public_sha256)
        with open_stream(rehearsal, "client-00") as second:
            second.hello("client-00")
            assert second.receive().WhichOneof("body") == "welcome"
        assert first.refusal() == Code.REVOKED
        first.close()


def test_refusals_are_counted_and_logged_at_a_limited_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    now = [0.0]
    monkeypatch.setattr(refusal_log.time, "monotonic", lambda: now[0])
    log = RefusalLog(lambda event, **fields: lines.append(fields))
    for _ in range(1000):
        log.add("client-00", Refused(Code.BUSY, "too many"))
    log.add("client-01", Refused(Code.REVOKED, "revoked"))
    assert len(lines) == LINES + 1 and lines[-1]["site"] == "client-01" and "muted" in lines[-2]
    before = len(lines)
    for _ in range(100):
        log.limited("joined", "client-00")
        log.limited("disconnected", "client-00")
    assert len(lines) == before + 2 * LINES
    now[0] = 61.0
    log.add("client-00", Refused(Code.BUSY, "too many"))
    assert lines[-1]["count"] == 1001


def test_a_status_that_is_no_refusal_stays_one(tmp_path: Path) -> None:
    class Failed(grpc.RpcError):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            self.details = lambda: text

    assert refusal_of(Failed("FEDAL-E108: the operator has revoked it.")).code == Code.REVOKED  # type: ignore[union-attr]
    assert refusal_of(Failed("failed to connect: FEDAL-E108: no")) is None


def test_a_closed_server_leaves_no_reader_behind(tmp_path: Path) -> None:
    """One that is still waiting for its site would touch the event loop after it is closed."""
    rehearsal = Rehearsal(tmp_path)
    with ExitStack() as stack:
        with rehearsal.service() as service:
            stranger = stack.enter_context(open_stream(rehearsal, "client-00"))
            stranger.hello("client-00")
            assert stranger.receive().WhichOneof("body") == "welcome"
            assert len(service.grpc_server._readers) == 1
        assert service.grpc_server._loop.is_closed()
        assert not asyncio.all_tasks(service.grpc_server._loop)
