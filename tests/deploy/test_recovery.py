"""Recovery that agrees: all return to the newest round that each of them can verify, and the bits stay the same."""

from __future__ import annotations

import random
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deployments import SITES, Rehearsal, Stranger, wait_for
from fedal.deploy.refusals import Code
from fedal.deploy.seats import Seat
from fedal.deploy.service import Service
from fedal.deploy.site import Site
from fedal.errors import CheckpointError
from fedal.records.checkpoint import saved_rounds, verified_rounds
from fedal.records.run import read_rows

pytestmark = pytest.mark.processes  # sockets


def checkpoints(rehearsal: Rehearsal, who: str) -> Path:
    return rehearsal.folder / ("server" if who == "server" else f"{who}-state") / "checkpoints"


def flip(rehearsal: Rehearsal, who: str, suffix: str = ".tensors", generation: int = 0) -> None:
    """Flips one bit of a checkpoint; generation 0 is the newest."""
    folder = checkpoints(rehearsal, who)
    path = saved_rounds(folder)[list(saved_rounds(folder))[generation]].with_suffix(suffix)
    content = bytearray(path.read_bytes())
    bit = random.Random(0).randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    assert len(verified_rounds(folder, lambda text: None)) < len(saved_rounds(folder))


def lose_commit(rehearsal: Rehearsal) -> None:
    """As if the server was killed after all sites had saved a round, and before it committed that round."""
    shutil.rmtree(rehearsal.folder / "server")
    shutil.copytree(rehearsal.folder / "server-before", rehearsal.folder / "server")


def run_and_stop(rehearsal: Rehearsal) -> int:
    """Runs a few rounds; returns the round that the server commits when it is stopped."""
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site, patience_s=0.0) for site in SITES]
        wait_for(lambda: service.journal.rounds > service.journal.committed + 1)
    for thread, _ in joined:
        thread.join(30)
    return rehearsal.committed()


class Scene(NamedTuple):
    rehearsal: Rehearsal
    copy: Path
    commits: list[int]  # oldest first: the sites hold all three, the server the last two

    def reset(self) -> Rehearsal:
        shutil.rmtree(self.rehearsal.folder)
        shutil.copytree(self.copy, self.rehearsal.folder)
        return self.rehearsal


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A federation that was stopped three times, and a copy of its folder."""
    folder = tmp_path_factory.mktemp("recovery")
    (folder / "now").mkdir()
    settings = {"rounds": 80, "checkpoint_every": 10**6, "eval_every": 4, "options": {"tau": 1}}
    rehearsal = Rehearsal(folder / "now", **settings)
    commits = [run_and_stop(rehearsal), run_and_stop(rehearsal)]
    shutil.copytree(rehearsal.folder / "server", rehearsal.folder / "server-before")
    commits.append(run_and_stop(rehearsal))
    assert commits[-1] < 80, "stopped before the end"
    assert list(saved_rounds(checkpoints(rehearsal, "server"))) == commits[:0:-1]
    assert {tuple(saved_rounds(checkpoints(rehearsal, site))) for site in SITES} == {tuple(commits[::-1])}
    rehearsal.alone()
    shutil.copytree(rehearsal.folder, folder / "copy")
    return Scene(rehearsal, folder / "copy", commits)


def test_the_state_of_server_and_sites_is_closed_to_others(scene: Scene) -> None:
    rehearsal = scene.reset()
    for folder in (rehearsal.folder / "server", rehearsal.folder / "client-00-state"):
        for path in (folder, *folder.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def lose(lost: str, rehearsal: Rehearsal) -> None:
    if lost.startswith("a commit"):
        lose_commit(rehearsal)
    if "two sites" in lost:
        flip(rehearsal, "client-00")
    who, suffix = "server" if "server" in lost else "client-01", ".json" if "JSON" in lost else ".tensors"
    flip(rehearsal, who, suffix, generation=int(lost.startswith("a commit") and who != "server"))


DAMAGES = {  # -> which of the three commits all return to, if the sites have to tell the server
    "a bit of a site's tensors": 1,
    "a bit of a site's JSON": 1,
    "a bit of two sites' tensors": 1,
    "a bit of the server's tensors": None,
    "a commit, and a bit of what a site saved for the one before": 0,
    "a commit, and a bit of the server's one before": None,
}


@pytest.mark.parametrize("lost", DAMAGES)
def test_one_damage_costs_one_generation_and_no_bit(scene: Scene, lost: str) -> None:
    rehearsal, events = scene.reset(), list[tuple[str, Any]]()
    lose(lost, rehearsal)
    with rehearsal.service(lambda event, **fields: events.append((event, fields.get("to")))) as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        for thread, failure in joined:
            thread.join(30)
            assert not failure
    returned, expected = [to for event, to in events if event == "going back"], DAMAGES[lost]
    assert returned == ([] if expected is None else [scene.commits[expected]])
    assert rehearsal.deployed() == rehearsal.alone()


def cut(seat: Seat) -> bool:
    """Ends the site's stream and its part in the round, if it takes part in one."""
    with seat._lock:
        link = seat._link
        if link is None or seat._awaits is None:
            return False
        seat.refuse("cut", link)
        link.close()
        seat.disconnect(link)
        return True


def test_a_live_site_whose_state_is_damaged_tells_the_server(scene: Scene) -> None:
    """It notices when all return to the newest commit, because another site was lost."""
    rehearsal, events = scene.reset(), list[str]()
    with rehearsal.service(lambda event, **fields: events.append(event)) as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(lambda: service.journal.rounds > scene.commits[-1])
        flip(rehearsal, "client-00")
        wait_for(lambda: cut(service.seats["client-01"]))
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
        assert service.strikes.count("client-00") == 1 and not service.strikes.count("client-01")
    assert "going back" in events
    assert rehearsal.deployed() == rehearsal.alone()


def test_a_site_without_any_common_round_is_refused_and_the_server_waits(scene: Scene) -> None:
    rehearsal = scene.reset()
    first, second, third = scene.commits
    with rehearsal.service() as service:
        claims = {"client-00": [first, second], "client-01": [third], "client-02": [second, third]}
        strangers = {site: Stranger(rehearsal.address, rehearsal.invitation(site)) for site in SITES}
        for site, rounds in claims.items():
            strangers[site].hello(site, run=service.journal.run, rounds_held=rounds)
        assert strangers["client-00"].refusal() == Code.STATE_LOST, (
            "it lacks the newest commit, which others hold alone"
        )
        assert service.journal.committed == third and service.seats["client-01"].connected
        unknown = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        unknown.hello("client-00", run=service.journal.run, rounds_held=[first, 10**9])
        assert unknown.refusal() == Code.STATE_LOST
        for each in (*strangers.values(), unknown):
            each.close()


def test_a_site_that_makes_all_go_back_again_and_again_is_put_in_quarantine(scene: Scene) -> None:
    rehearsal = scene.reset()
    rehearsal.plan = replace(rehearsal.plan, deployment=rehearsal.plan.deployment.model_copy(update={"max_strikes": 1}))
    second, third = scene.commits[1:]
    with rehearsal.service() as service:
        strangers = {site: Stranger(rehearsal.address, rehearsal.invitation(site)) for site in SITES}
        for site, stranger in strangers.items():
            rounds = [second] if site == "client-00" else [second, third]
            stranger.hello(site, run=service.journal.run, rounds_held=rounds)
        assert strangers["client-00"].refusal() == Code.QUARANTINED
        assert service.journal.committed == third, "the others keep their newest commit"
        for each in strangers.values():
            each.close()


def test_a_site_that_finished_with_a_damaged_state_saves_the_intact_one(scene: Scene) -> None:
    rehearsal = scene.reset()
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
    for thread, _ in joined:
        thread.join(30)
    (rehearsal.folder / "server/summary.json").unlink()
    flip(rehearsal, "client-00")
    said: list[str] = []
    with rehearsal.service():
        (rehearsal.folder / "client-00.safetensors").unlink()
        Site(rehearsal.site_plan("client-00"), said.append).run()
    assert any(f"using the state after round {scene.commits[-1]}" in text for text in said)
    assert (rehearsal.folder / "client-00.safetensors").exists()


# state never begins anew without a word, and no log is needed to go on


LOGS = ("metrics.jsonl", "clients.jsonl", "participation.jsonl", "environment.json", "config.toml")


@pytest.mark.parametrize("damage", ["deleted", "torn", "garbage"])
def test_logs_are_not_needed_to_go_on(scene: Scene, damage: str) -> None:
    rehearsal, warnings = scene.reset(), list[str]()
    server = rehearsal.folder / "server"
    for name in LOGS if damage == "deleted" else LOGS[:2]:
        path = server / name
        content = path.read_bytes()
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(content[:-7] if damage == "torn" else b"\xff" * len(content))
    with rehearsal.service(lambda event, **fields: warnings.append(str(fields.get("text", "")))) as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
    assert any("metrics.jsonl" in text for text in warnings)
    if damage == "torn":
        assert read_rows(server / "metrics.jsonl"), "every line can be read"
    assert rehearsal.deployed() == rehearsal.alone()


def test_lost_state_is_an_error_that_says_what_to_do(scene: Scene) -> None:
    rehearsal = scene.reset()
    server = rehearsal.folder / "server"
    moved = server / "moved"
    for lost in (server / "federation.json", server / "checkpoints", server / "strikes.json"):
        before = sorted(server.rglob("*"))
        lost.rename(moved)
        with rehearsal.service() as service:
            pass
        (failure,) = service.failure
        assert isinstance(failure, CheckpointError) and "from a backup" in str(failure) and str(lost) in str(failure)
        moved.rename(lost)
        assert sorted(server.rglob("*")) == before, "nothing was begun"
    (rehearsal.folder / "client-00-state/site.json").unlink()
    with pytest.raises(CheckpointError, match=r"site.json is missing.*--restart-from-scratch"):
        Site(rehearsal.site_plan("client-00"), lambda text: None).run()


def test_a_server_killed_while_it_creates_its_folder_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = Rehearsal(tmp_path, export=False)
    with monkeypatch.context() as patch:
        patch.setattr(secrets, "randbits", lambda bits: 1 / 0)  # after the first checkpoint, before federation.json
        with pytest.raises(ZeroDivisionError):
            Service(rehearsal.plan, log=lambda event, **fields: None).run()
    assert list(saved_rounds(tmp_path / "server/checkpoints")) == [0]
    with rehearsal.service() as service:
        pass
    assert "Stopped" in repr(service.failure)
