"""Whatever one site sends, or does not send: the others finish, with the bits of a replay of who took part."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import fedal
from deployments import SITES, Rehearsal, Stranger, certs, digest, pb, wait_for
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat, Silent
from fedal.deploy.strikes import FORGIVEN_AFTER, Strikes, readmission
from fedal.errors import CheckpointError, RunError
from fedal.messages import Outputs
from fedal.methods.outputs.fedal import FedALServer
from fedal.records.run import read_rows
from hostile_sites import (
    NAME,
    Attacker,
    Behave,
    Hostile,
    babbling,
    boastful,
    done_for_upload,
    leave,
    ones,
    put,
    repeated,
    replay,
    second_hello,
    silent,
    unsaved,
    upload_for_done,
    with_number,
    with_tensor,
    wrong_batch,
    zero,
)
from replays import replayed

TAU, ROUNDS = 2, 3
BUDGET_S = 60.0  # strikes bound what an attacker costs: at most `max_strikes` deadlines and lost rounds
MORE_SITES = ("client-04", "client-05")  # five honest sites in `make soak`; the attacker is client-03


Case = tuple[str, str, Behave, tuple[int, int], str]
CASES: dict[str, Case] = {  # policy, method, behaviour, first round and exchange, part of the newest strike's reason
    "Done for an upload": ("wait", "fedal", done_for_upload, (1, 1), Code.OUT_OF_STEP),
    "an upload for Done": ("wait", "fedal", upload_for_done, (1, TAU), Code.OUT_OF_STEP),
    "nan": ("wait", "fedal", with_tensor(0, put(np.nan)), (1, 0), Code.NOT_FINITE),
    "another batch": ("continue", "fedmd", wrong_batch, (0, 1), Code.WRONG_BATCH),
    "a replayed message": ("wait", "fedal", replay, (1, 1), Code.WRONG_INCARNATION),
    "labels beyond the classes": ("wait", "fedgkt", with_tensor(2, put(10), "int32"), (1, 0), Code.CONTENT),
    "counts that do not fit": ("continue", "fedproto", with_tensor(1, zero, "int32"), (1, 0), Code.CONTENT),
    "samples of 2^62": ("wait", "fedavg", with_number("samples", 2**62), (1, 0), Code.CONTENT),
    "codes that do not decode": ("continue", "cfd", with_tensor(0, ones, "uint8"), (1, 0), Code.CONTENT),
    "silent at the first upload": ("continue", "fedal", silent, (1, 0), "no answer within 2 s"),
    "gone at the second upload": ("continue", "fedal", leave, (1, 1), "no answer within 2 s"),
    "a flood of one answer": ("wait", "fedal", repeated, (1, 1), Code.UNEXPECTED),
}
MORE_CASES: dict[str, Case] = {
    "Done for an upload": ("continue", "fedal", done_for_upload, (1, 1), Code.OUT_OF_STEP),
    "an upload for Done": ("continue", "fedal", upload_for_done, (1, TAU), Code.OUT_OF_STEP),
    "nan": ("continue", "fedal", with_tensor(0, put(np.nan)), (1, 1), Code.NOT_FINITE),
    "another batch": ("wait", "fedmd", wrong_batch, (0, 1), Code.WRONG_BATCH),
    "a replayed message": ("continue", "fedal", replay, (1, 1), Code.WRONG_ROUND),
    "labels beyond the classes": ("continue", "fedgkt", with_tensor(2, put(-1), "int32"), (1, 1), Code.CONTENT),
    "counts that do not fit": ("wait", "fedproto", with_tensor(1, ones, "int32"), (1, 0), Code.CONTENT),
    "samples of 0": ("continue", "fedavg", with_number("samples", 0), (0, 1), Code.CONTENT),
    "codes that do not decode": ("wait", "cfd", with_tensor(0, ones, "uint8"), (1, 0), Code.CONTENT),
    "gone at the first upload": ("continue", "fedal", leave, (1, 0), "no answer within 2 s"),
    "gone at the end of a round": ("continue", "fedal", leave, (1, TAU), "no answer within 2 s"),
    "silent at the end of a round": ("continue", "fedal", silent, (1, TAU), "no answer within 2 s"),
    "a flood before an answer": ("continue", "fedal", babbling, (1, 1), Code.UNEXPECTED),
    "a flood before the end of a round": ("wait", "fedal", babbling, (1, TAU), Code.UNEXPECTED),
    "a second hello": ("continue", "fedmd", second_hello, (1, 1), Code.UNEXPECTED),
    "a round that is not saved": ("wait", "fedal", unsaved, (1, TAU), Code.NOT_SAVED),
    "metrics with long names": ("continue", "fedal", boastful, (1, TAU), Code.WRONG_METRICS),
}


def federation_with(
    tmp_path: Path, policy: str, method: str = "fedal", max_strikes: int = 2, **settings: Any
) -> Rehearsal:
    table = {"policy": policy, "max_strikes": max_strikes, "deadline_s": 30.0, **settings.pop("deployment", {})}
    values = {
        "method": method,
        "models": "cnn-small",
        "clients": 4,
        "rounds": ROUNDS,
        "checkpoint_every": 1,
        **settings,
    }
    return Rehearsal(tmp_path, table, options={"tau": TAU}, **values)


def honest_sites(rehearsal: Rehearsal) -> list[str]:
    return [name for name in rehearsal.config.client_names if name != NAME]


def run_with_attacker(
    rehearsal: Rehearsal, behave: Behave, at: tuple[int, int], model: str = "cnn-small"
) -> tuple[Any, list[tuple[str, Any]], Attacker]:
    events: list[tuple[str, Any]] = []
    for site in honest_sites(rehearsal)[len(SITES) :]:
        certs.issue_client(rehearsal.folder / "certs", site, rehearsal.plan.public_sha256)
    with rehearsal.service(lambda event, **fields: events.append((event, fields))) as service:
        joined = [rehearsal.join_in_thread(site, model=model) for site in honest_sites(rehearsal)]
        attacker = Attacker(rehearsal, behave, at, model=model)
        wait_for(lambda: service.folder.summary.exists() or any(failure for _, failure in joined))
        for thread, failure in joined:
            thread.join(30)
            assert not failure
        attacker.stopped.set()
    attacker.thread.join(10)
    assert service.failure == []
    return service, events, attacker


def logged(events: Sequence[tuple[str, Any]], event: str) -> list[Any]:
    return [fields for name, fields in events if name == event]


@pytest.mark.parametrize("name", CASES)
def test_the_honest_sites_finish_with_the_bits_of_the_replay(tmp_path: Path, name: str) -> None:
    attack(tmp_path, *CASES[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", MORE_CASES)
def test_they_also_do_so_with_the_other_policy_and_in_other_phases(tmp_path: Path, name: str) -> None:
    attack(tmp_path, *MORE_CASES[name], clients=1 + len(SITES + MORE_SITES))


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_five_honest_sites_finish_too(tmp_path: Path, name: str) -> None:
    attack(tmp_path, *CASES[name], clients=1 + len(SITES + MORE_SITES))


def attack(
    tmp_path: Path, policy: str, method: str, behave: Behave, at: tuple[int, int], reason: str, clients: int = 4
) -> None:
    # With `continue`, no site goes back, so the uploads of an attacker that returned would not be those of a replay.
    limit = 1 if policy == "continue" else 2
    deadline = {"deadline_s": 2.0} if reason.startswith("no answer") else {}
    rehearsal = federation_with(tmp_path, policy, method, limit, deployment=deadline, clients=clients)
    began = time.monotonic()
    service, events, _ = run_with_attacker(rehearsal, behave, at)
    assert time.monotonic() - began < BUDGET_S
    (banned,) = logged(events, "quarantine")
    assert banned["site"] == NAME and reason in banned["reason"] and banned["strikes"] == limit
    assert service.strikes.quarantined() == [NAME]
    assert_replayed(rehearsal)
    final = {row["client"]: row for row in read_rows(tmp_path / "server/clients.jsonl") if row["final"]}
    assert final[NAME]["quarantined"] and final[NAME]["strikes"] == limit and not final[NAME]["participated"]
    assert "strikes" not in final[SITES[0]]


def assert_replayed(rehearsal: Rehearsal) -> None:
    again, sites = replayed(rehearsal), honest_sites(rehearsal)
    assert {n: again[n] for n in sites} == {n: digest(rehearsal.folder / f"{n}.safetensors") for n in sites}


MARK = 12345.0


@pytest.mark.parametrize("policy", ["wait", "continue"])
def test_a_site_that_makes_the_half_raise_is_found_and_the_round_is_run_without_it(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half has a defect that only one site's content triggers, in the second exchange of a round."""
    original = FedALServer.round

    def fragile(self: FedALServer, t: int, clients: Sequence[str]) -> Any:
        playing = original(self, t, clients)
        reply = next(playing)
        while True:
            up = yield reply
            try:
                reply = playing.send(up)
            except StopIteration as stop:
                assert all(message.values[0, 0] != MARK for message in up.values())
                return stop.value

    monkeypatch.setattr(FedALServer, "round", fragile)
    rehearsal = federation_with(tmp_path, policy, max_strikes=1)
    service, events, attacker = run_with_attacker(rehearsal, with_tensor(0, put(MARK)), (1, 1))
    assert [fields["site"] for fields in logged(events, "refused") if fields["code"] == Code.CONTENT] == [NAME]
    assert logged(events, "quarantine") and "AssertionError" in service.strikes.reason(NAME)
    assert Code.CONTENT in attacker.refusals
    assert_replayed(rehearsal)


def test_without_a_culprit_the_server_stops_and_keeps_the_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: FedALServer, t: int, clients: Sequence[str]) -> Any:
        yield None
        raise ZeroDivisionError

    monkeypatch.setattr(FedALServer, "round", broken)
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service() as service:
        for site in SITES:
            rehearsal.join_in_thread(site, patience_s=0.0)
        path = tmp_path / "server/uploads-of-round-0.npz"
        wait_for(path.exists)
    (failure,) = service.failure
    assert isinstance(failure, RunError) and "ZeroDivisionError" in str(failure) and str(path) in str(failure)
    with np.load(path) as kept:
        assert sorted(kept) == [f"0/{site}/Outputs/values" for site in SITES]
    assert service.strikes.quarantined() == []


def garbage(rehearsal: Rehearsal, service: Any, site: str) -> None:
    """One strike: a message that no site sends."""
    stranger = Stranger(rehearsal.address, rehearsal.invitation(site))
    stranger.hello(site)
    assert stranger.receive().WhichOneof("body") == "welcome"
    stranger.send(b"\xff" * 64)
    assert stranger.refusal() == Code.NOT_A_MESSAGE
    stranger.close()
    wait_for(lambda: not service.seats[site].connected)


def test_quarantine_below_min_clients_ends_the_run_with_a_sentence_until_the_operator_readmits(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, {"max_strikes": 2}, rounds=1)
    with rehearsal.service() as service:
        garbage(rehearsal, service, "client-00")
        garbage(rehearsal, service, "client-00")
        wait_for(lambda: service.strikes.quarantined())
        status = {site.site: (site.strikes, site.quarantined) for site in service.callbacks.status().sites}
    assert status == {"client-00": (2, True), "client-01": (0, False), "client-02": (0, False)}
    assert isinstance(service.failure[0], RunError) and "fewer than min_clients = 3 remain" in str(service.failure[0])
    with rehearsal.service() as service:  # strikes outlive the process
        pass
    assert "client-00" in str(service.failure[0])
    assert fedal("readmit", "nobody", "--config", rehearsal.config_file).code == 2
    assert fedal("readmit", "client-00", "--config", rehearsal.config_file).code == 0
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
    assert rehearsal.deployed() == rehearsal.alone()


def test_a_readmitted_site_continues_with_its_newest_state(tmp_path: Path) -> None:
    """Policy `wait`: all others have saved rounds without it, and return to the newest one when it joins."""
    honest: list[bool] = []

    def for_a_while(site: Hostile, answer: pb.FromSite) -> list[pb.FromSite]:
        return [answer] if honest else with_tensor(0, put(np.nan))(site, answer)  # type: ignore[return-value]

    events: list[str] = []

    def log(event: str, **fields: Any) -> None:
        events.append(event)
        if event == "committed" and fields["round"] == 6:
            readmission(tmp_path / "server", NAME).touch()

    rehearsal = federation_with(tmp_path, "wait", max_strikes=1, rounds=9, checkpoint_every=3)
    with rehearsal.service(log) as service:
        for site in SITES:
            rehearsal.join_in_thread(site, model="cnn-small")
        first = Attacker(rehearsal, for_a_while, (4, 1), model="cnn-small")
        wait_for(lambda: "readmitted" in events)
        first.stopped.set()
        first.thread.join(10)
        honest.append(True)
        Attacker(rehearsal, for_a_while, (4, 1), model="cnn-small")
        wait_for(service.folder.summary.exists)
    assert events.count("quarantine") == events.count("readmitted") == 1
    again = replayed(rehearsal)
    assert again == {site: digest(tmp_path / f"{site}.safetensors") for site in again}
    lines = [json.loads(line) for line in (tmp_path / "server/participation.jsonl").read_text().splitlines()]
    assert lines == [{"round": t, "missed": {NAME: 0}} for t in (3, 4, 5)]


class Nowhere:
    def __init__(self) -> None:
        self.sent: list[str | None] = []

    def send(self, message: pb.FromServer) -> None:
        self.sent.append(message.WhichOneof("body"))

    def refuse(self, refused: Refused) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def test_a_site_that_missed_a_deadline_sits_out_until_it_has_answered_a_probe() -> None:
    seat, link = Seat("client-00", "continue", lambda site, upload: Outputs(upload), 0.01), Nowhere()
    seat.connect(link, pb.Hello(), pb.Welcome())
    assert seat.ready
    seat.ask(pb.FromServer(begin=pb.Begin()), (1, 0, 0), True)
    with pytest.raises(Silent):
        seat.wait()
    again = Nowhere()
    seat.connect(again, pb.Hello(), pb.Welcome())
    assert seat.connected and not seat.ready and again.sent == ["welcome", "probe"]
    seat.take(pb.FromSite(alive=pb.Alive()), link)
    assert not seat.ready, "an answer on the old stream"
    seat.take(pb.FromSite(alive=pb.Alive()), again)
    assert seat.ready


def test_a_silent_site_that_rejoins_costs_a_bounded_number_of_deadlines(tmp_path: Path) -> None:
    """It answers every probe, and nothing else."""
    rehearsal = federation_with(tmp_path, "continue", max_strikes=2, rounds=20, deployment={"deadline_s": 2.5})
    _, events, _ = run_with_attacker(rehearsal, silent, (0, 0))
    assert 1 <= len(logged(events, "strike")) <= 2


def test_absences_are_forgiven_after_a_while_and_refused_content_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("fedal.deploy.strikes.time.monotonic", lambda: clock[0])
    strikes = Strikes(tmp_path, ["a", "b"], 3, 60.0, lambda event, **fields: None)
    strikes.refused("a", "nan")
    for _ in range(10):
        strikes.absent("a", "no answer")
        assert strikes.count("a") == 2 and not strikes.is_quarantined("a")
        clock[0] += 60.0 * FORGIVEN_AFTER
    strikes.absent("a", "no answer")
    strikes.absent("a", "no answer")
    assert strikes.quarantined() == ["a"] and strikes.count("b") == 0
    later = Strikes(tmp_path, ["a", "b"], 3, 60.0, lambda event, **fields: None)
    later.open(begun=True)
    assert later.quarantined() == ["a"] and later.count("a") == 3 and later.reason("a") == "no answer"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 3}', b'{"a": {"refused": "x"}}'])
def test_damaged_or_lost_strikes_are_not_forgiven_without_the_operator(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "strikes.json"
    strikes = Strikes(tmp_path, ["a"], 3, 60.0, lambda event, **fields: None)
    strikes.open(begun=False)
    strikes.open(begun=True)
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"strikes.json: cannot be read.*from a backup"):
        strikes.open(begun=True)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"strikes.json is missing.*from a backup.*: echo '\{\}' > /"):
        strikes.open(begun=True)
    file.write_text("{}\n")  # as the message advises
    strikes.open(begun=True)
    assert strikes.count("a") == 0
