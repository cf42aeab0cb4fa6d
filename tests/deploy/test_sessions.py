"""One process per site: clones wait, zombies are refused, and no message is applied twice."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments import SITES, Rehearsal, Stranger, wait_for
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.site import Site
from splits import fingerprint


def state(service: Any) -> Any:
    return fingerprint({"server": service.server.state_dict(), "wire": service.wire.state_dict()})


def test_a_second_process_of_a_site_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service() as service:
        first, second = (Stranger(rehearsal.address, rehearsal.invitation("client-00")) for _ in range(2))
        first.hello("client-00")
        assert first.receive().WhichOneof("body") == "welcome"
        second.hello("client-00")
        assert second.refusal() == Code.IN_USE
        assert service.seats["client-00"].connected, "the first is not disturbed"
        again = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        again.hello("client-00", session=first.session)  # the same process after its link broke unnoticed
        assert again.receive().WhichOneof("body") == "welcome"
        assert first.refusal() == "ended"
        again.close()
        wait_for(lambda: not service.seats["client-00"].connected)
        third = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        third.hello("client-00")
        assert third.receive().WhichOneof("body") == "welcome"
        for each in (first, second, third):
            each.close()


def test_a_clone_waits_and_then_gives_up(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service():
        rehearsal.join_in_thread("client-00")
        said: list[str] = []
        plan = rehearsal.site_plan("client-00")
        clone = Site(replace(plan, state=tmp_path / "clone", patience_s=0.5), said.append)
        with pytest.raises(Refused) as refused:
            clone.run()
    assert refused.value.code == Code.IN_USE
    assert said == ["another process takes part as this site. Trying again."]


def stop_and_replace(folder: Path, seed: int) -> None:
    """Real processes: a site stops, is replaced by a clone of its disk, and wakes up."""
    rehearsal = Rehearsal(folder, {"deadline_s": 2.0}, rounds=100, checkpoint_every=5, eval_every=10**6, seed=seed)
    log = folder / "server.log"
    server = rehearsal.serve_process()
    processes = {site: rehearsal.join_process(site) for site in SITES}
    stopped = processes["client-01"]
    try:
        wait_for(lambda: rehearsal.committed() >= 5 * (1 + seed % 5))
        os.kill(stopped.pid, signal.SIGSTOP)
        wait_for(lambda: "no answer within" in log.read_text())
        shutil.copytree(folder / "client-01-state", folder / "clone", ignore=shutil.ignore_patterns("run.lock"))
        before = rehearsal.committed()
        processes["client-01"] = rehearsal.join_process("client-01", "--state", "clone")
        wait_for(lambda: rehearsal.committed() > before)
        os.kill(stopped.pid, signal.SIGCONT)
        wait_for(lambda: f'"{Code.IN_USE}"' in log.read_text())
        assert server.wait(120) == 0
        assert {site: process.wait(60) for site, process in processes.items()} == dict.fromkeys(SITES, 0)
    finally:
        for process in (server, stopped, *processes.values()):
            process.kill()
    assert rehearsal.deployed() == rehearsal.alone()


def test_a_zombie_is_refused_and_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads: the first client-01 pauses in a round and wakes up after a clone of its disk has taken part."""
    asleep, awake, answers = threading.Event(), threading.Event(), Site._answers
    events: list[str] = []

    def tired(self: Site, message: pb.FromServer, channel: Any) -> Iterator[pb.FromSite]:
        if self._plan.state.name == "client-01-state" and message.reply.round == 5:
            asleep.set()
            awake.wait(60)
        if self._plan.state.name == "clone" and message.reply.round == 12:
            wait_for(lambda: Code.IN_USE in events)  # the clone is still there when the other wakes up
        yield from answers(self, message, channel)

    monkeypatch.setattr(Site, "_answers", tired)
    rehearsal = Rehearsal(tmp_path, {"deadline_s": 1.5}, rounds=30, checkpoint_every=3)
    with rehearsal.service(lambda event, **fields: events.append(str(fields.get("code", event)))) as service:
        _, refused = [rehearsal.join_in_thread(site, patience_s=1.0) for site in SITES][1]
        wait_for(asleep.is_set)
        wait_for(lambda: "round lost" in events)
        shutil.copytree(tmp_path / "client-01-state", tmp_path / "clone", ignore=shutil.ignore_patterns("run.lock"))
        rehearsal.join_in_thread("client-01", state=tmp_path / "clone")
        wait_for(lambda: rehearsal.committed() >= 6)
        awake.set()
        wait_for(service.folder.summary.exists)
        wait_for(lambda: refused)
    assert Code.IN_USE in events
    # It tries for a second: the clone is there, or has left, or the server has ended.
    assert isinstance(refused[0], Refused)
    assert refused[0].code in (Code.IN_USE, Code.STATE_LOST, Code.UNREACHABLE)
    assert rehearsal.deployed() == rehearsal.alone()


@pytest.mark.processes
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_twenty_zombie_processes_are_refused_and_change_no_bit(tmp_path: Path) -> None:
    for seed in range(20):
        (tmp_path / str(seed)).mkdir()
        stop_and_replace(tmp_path / str(seed), seed)


def recorded(site: Site, said: list[pb.FromSite]) -> None:
    """Lets a site take part as usual and keeps a copy of everything it sends."""
    answers = site._answers

    def keep(message: pb.FromServer, channel: Any) -> Iterator[pb.FromSite]:
        for answer in answers(message, channel):
            said.append(answer)
            yield answer

    site._answers = keep  # type: ignore[method-assign]


@pytest.fixture(scope="module", params=[20, pytest.param(334, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def captured(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Rehearsal, list[pb.FromSite]]:
    """Everything that a site sends in a whole run."""
    rounds = request.param
    folder = tmp_path_factory.mktemp("captured")
    rehearsal = Rehearsal(folder, {"max_strikes": 10**6}, rounds=rounds, checkpoint_every=5)
    said: list[pb.FromSite] = []
    original = Site.__init__

    def init(self: Site, plan: Any, notify: Any) -> None:
        original(self, plan, notify)
        if plan.name == "client-00":
            recorded(self, said)

    with pytest.MonkeyPatch.context() as patch, rehearsal.service() as service:
        patch.setattr(Site, "__init__", init)
        for site in SITES:
            rehearsal.join_in_thread(site)
        wait_for(service.folder.summary.exists)
    uploads = [message for message in said if message.WhichOneof("body") in ("upload", "done")]
    assert len(uploads) == rounds * 3  # tau + 1 in each
    return rehearsal, uploads


REPLAYS = {"a new session of the same run": "client-00", "another site": "client-02", "another run": "client-00"}


@pytest.mark.parametrize("setting", REPLAYS)
def test_replayed_messages_are_refused_and_change_nothing(
    captured: tuple[Rehearsal, list[pb.FromSite]], tmp_path: Path, setting: str
) -> None:
    """Replays every message of a run with a valid certificate: as after a restart of the server, and otherwise."""
    rehearsal, said = captured
    site = REPLAYS[setting]
    rounds = len(said) // 3
    held: dict[str, Any] = {"rounds_held": [rounds]}
    if setting == "another run":
        rehearsal, held = Rehearsal(tmp_path, {"max_strikes": 10**6}, rounds=rounds), {"rounds_held": [0]}
    (rehearsal.folder / "server/summary.json").unlink(missing_ok=True)
    with rehearsal.service() as service:
        before = state(service)
        for message in said:
            attacker = Stranger(rehearsal.address, rehearsal.invitation(site))
            attacker.hello(site, **held)
            assert attacker.receive().WhichOneof("body") == "welcome"
            attacker.send(message)
            assert attacker.refusal() == Code.UNEXPECTED
            attacker.close()
            wait_for(lambda: not service.seats[site].connected)
        assert state(service) == before


def test_a_replay_during_the_same_request_of_another_run_is_refused(
    captured: tuple[Rehearsal, list[pb.FromSite]], tmp_path: Path
) -> None:
    """Same seed, site, round and batch: only the incarnation, which is random, distinguishes the runs."""
    _, said = captured
    rehearsal = Rehearsal(tmp_path, {"deadline_s": 5.0}, rounds=20)
    with rehearsal.service() as service:
        for site in SITES[1:]:
            rehearsal.join_in_thread(site, patience_s=0.0)
        attacker = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        attacker.hello("client-00", rounds_held=[0])
        begin, before = attacker.begin(), state(service)
        assert (said[0].upload.round, said[0].upload.exchange) == (begin.round, 0)
        attacker.send(said[0])
        assert attacker.refusal() == Code.WRONG_INCARNATION
        attacker.close()
        assert state(service) == before


def test_fewer_than_three_sites_get_no_reply(tmp_path: Path) -> None:
    """Policy `continue`, one site silent: a mean of two answers would reveal each to the other, so none is sent."""
    events: list[str] = []
    rehearsal = Rehearsal(tmp_path, {"policy": "continue", "deadline_s": 1.0})
    with rehearsal.service(lambda event, **fields: events.append(f"{event} {fields}")) as service:
        sites = {site: Stranger(rehearsal.address, rehearsal.invitation(site)) for site in SITES}
        for site, stranger in sites.items():
            stranger.hello(site, rounds_held=[0])
        begins = {site: stranger.begin() for site, stranger in sites.items()}
        before = fingerprint(service.server.state_dict())
        for site in SITES[:2]:  # the third sends nothing
            sites[site].send(pb.FromSite(upload=first_upload(service, begins[site])))
        wait_for(lambda: any(Code.COHORT_TOO_SMALL in event for event in events))
        assert fingerprint(service.server.state_dict()) == before and not service.wire.down_bytes
        for site in SITES[:2]:
            sites[site].close()
            kinds = {message.WhichOneof("body") for message in messages_of(sites[site])}
            assert "reply" not in kinds
        sites[SITES[2]].close()


def messages_of(stranger: Stranger) -> Iterator[pb.FromServer]:
    try:
        yield from stranger.responses
    except Exception:  # closed above, after all that had arrived was read
        return


def first_upload(service: Any, begin: pb.Begin) -> pb.Upload:
    batch = service.server.expected_batch(begin.round, 0)
    upload = pb.Upload(incarnation=begin.incarnation, round=begin.round, batch=batch)
    upload.payload.kind = "Outputs"
    upload.payload.tensors.add(name="values", dtype="float32", shape=[8, 10], data=np.zeros((8, 10), "f4").tobytes())
    return upload
