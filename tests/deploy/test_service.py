"""The server and its sites in threads of one process: rounds, recovery and admission."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedal
from deployments import SITES, Rehearsal, Stranger, wait_for
from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.site import Site
from fedal.errors import CheckpointError, ConfigError
from fedal.records.run import read_rows
from fedal.report.page import write_report
from splits import QUICK, of_each_set_of_messages, synthetic_images


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


def run_to_completion(rehearsal: Rehearsal, sites: tuple[str, ...] = SITES) -> None:
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in sites]
        wait_for(lambda: service.folder.summary.exists() or any(failure for _, failure in joined))
        for thread, failure in joined:
            thread.join(30)
            assert not failure


@pytest.mark.parametrize("method", of_each_set_of_messages())
def test_a_deployed_federation_is_bit_identical_to_one_process(tmp_path: Path, method: str) -> None:
    options = QUICK.get(method, {}) | ({} if method in ("cfd",) else {"tau": 2})
    rehearsal = Rehearsal(tmp_path, method=method, options=options, models="cnn-small", rounds=2)
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site, model="cnn-small") for site in SITES]
        wait_for(lambda: service.folder.summary.exists() or any(failure for _, failure in joined))
        assert [failure for _, failure in joined] == [[], [], []]
    assert rehearsal.deployed() == rehearsal.alone()


@pytest.mark.parametrize("method", ["fedmd", "fedal"])
@pytest.mark.parametrize("rule", ["median", "geometric-median"])
def test_robust_aggregates_have_the_same_bits_in_a_deployment(tmp_path: Path, method: str, rule: str) -> None:
    robust = {"tau": 2, "aggregate": rule, "space": "probabilities"}
    rehearsal = Rehearsal(tmp_path, method=method, options=robust, rounds=2)
    run_to_completion(rehearsal)
    assert rehearsal.deployed() == rehearsal.alone()


def test_the_record_lists_participants_and_shared_metrics(rehearsal: Rehearsal) -> None:
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site, share_metrics=site == "client-01") for site in SITES]
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
    last = fedal.load_run(rehearsal.folder / "server").final
    sites = {row["client"]: row for row in read_rows(rehearsal.folder / "server/clients.jsonl") if row["final"]}
    assert last["participants"] == 3 and [row["participated"] for row in sites.values()] == [True] * 3
    assert {site for site, row in sites.items() if "own_test_accuracy" in row} == {"client-01"}
    assert last["own_test_accuracy"] == sites["client-01"]["own_test_accuracy"] and "test_accuracy" not in last
    assert last["up_bytes"] == 3 * 4 * 2 * (4 * 8 * 10)  # sites x rounds x tau x bytes
    assert sum(row["up_bytes"] for row in sites.values()) == last["up_bytes"]
    report, problems = write_report([service.folder.path])
    assert problems == []
    assert "mean over 1 of 3 sites" in report.read_text(encoding="utf-8")


def test_a_site_that_lost_its_state_is_admitted_only_with_restart(rehearsal: Rehearsal) -> None:
    with rehearsal.service() as service:
        for site in SITES:
            rehearsal.join_in_thread(site)
        wait_for(lambda: rehearsal.committed() >= 4)
        wait_for(service.folder.summary.exists)
    (rehearsal.folder / "server/summary.json").unlink()
    with rehearsal.service():
        _, failure = rehearsal.join_in_thread("client-00", state=rehearsal.folder / "empty")
        wait_for(lambda: failure)
        assert isinstance(failure[0], Refused) and failure[0].code == Code.STATE_LOST
        fresh = {"state": rehearsal.folder / "empty", "save": rehearsal.folder / "late.safetensors"}
        thread, failure = rehearsal.join_in_thread("client-00", restart=True, **fresh)
        thread.join(30)
        assert [error.code for error in failure] == [Code.UNTRAINED]  # type: ignore[attr-defined]
        assert not (rehearsal.folder / "late.safetensors").exists()


LOCAL = {"local_loss": "balanced", "prior_strength": 0.5}
CHANGED = {"public_augment": "shift,mixup", "public_clean": 0.25, "public_augment_start": 3, "private_augment": "noise"}
OPTIONS: list[dict[str, Any]] = [
    {"method": "fedal", **CHANGED, "options": {"tau": 2, "replay": 1, **LOCAL}},
    {"method": "fedmd", "options": {"tau": 2, "local_loss": "restricted", "aggregate": "debias"}},
    {"method": "fedmd-lf", "options": {"tau": 2, "aggregate": "coverage", "class_strength": 0.5}},
    {"method": "fedmd", "options": {"tau": 2, "aggregate": "confidence"}},
    {"method": "fedmd", "options": {"tau": 2, "aggregate": "power", "space": "probabilities"}},
    {"method": "fedlift", "options": {"tau": 2}},  # it has others by default
]


@pytest.mark.parametrize("settings", OPTIONS, ids=lambda settings: str(settings["options"]))
def test_options_that_are_off_by_default_have_the_same_bits_in_a_deployment(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    rehearsal = Rehearsal(tmp_path, rounds=3, **settings)
    run_to_completion(rehearsal)
    assert rehearsal.deployed() == rehearsal.alone()
    assert rehearsal.plan.config.for_sites()["options"].items() >= settings["options"].items()


REMEMBERING = {"replay": 2, "discriminator_input": "outputs-and-mean", "discriminator_rule": "balance"}


@pytest.mark.parametrize("options", [{}, REMEMBERING], ids=["default", "replay and rule"])
def test_a_silent_site_misses_the_deadline_and_all_return_to_the_committed_round(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rehearsal, events = Rehearsal(tmp_path, {"deadline_s": 2.0}, options={"tau": 2, **options}), []
    with rehearsal.service(lambda event, **fields: events.append((event, fields))) as service:
        silent = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        silent.hello("client-00")
        others = [rehearsal.join_in_thread(site) for site in SITES[1:]]
        wait_for(lambda: any(event == "round lost" for event, _ in events))
        silent.close()
        others.append(rehearsal.join_in_thread("client-00"))
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in others] == [[], [], []]
    assert rehearsal.deployed() == rehearsal.alone()


def test_with_policy_continue_the_others_continue_and_the_record_lists_who_took_part(tmp_path: Path) -> None:
    settings = {"clients": 4, "rounds": 6}
    rehearsal = Rehearsal(tmp_path, {"policy": "continue", "deadline_s": 2.0}, **settings)
    with rehearsal.service() as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]  # client-03 never joins
        wait_for(service.folder.summary.exists)
        assert [failure for _, failure in joined] == [[], [], []]
    rows = [row for row in read_rows(tmp_path / "server/clients.jsonl") if row["final"]]
    assert [row["client"] for row in rows if row["participated"]] == [*SITES] and len(rows) == 4


def test_a_repeated_answer_is_served_from_the_cache_and_not_applied(rehearsal: Rehearsal) -> None:
    """Sites that send every answer twice end with the same bits."""
    original, known = Site._answers, set[tuple[int, bytes]]()

    def twice(self: Site, message: pb.FromServer, channel: object) -> Iterator[pb.FromSite]:
        for answer in original(self, message, channel):  # type: ignore[arg-type]
            yield answer
            if (this := (id(self), answer.SerializeToString())) not in known:  # or each echo would have two echoes
                known.add(this)
                yield answer

    Site._answers = twice  # type: ignore[method-assign, assignment]
    try:
        run_to_completion(rehearsal)
    finally:
        Site._answers = original  # type: ignore[method-assign]
    assert rehearsal.deployed() == rehearsal.alone()


def test_a_link_cut_in_every_round_changes_no_bit_and_loses_no_round(rehearsal: Rehearsal) -> None:
    events: list[str] = []
    with rehearsal.service(lambda event, **fields: events.append(event)) as service:
        joined = [rehearsal.join_in_thread(site) for site in SITES]
        cut: set[int] = set()
        while not service.folder.summary.exists():
            seat = service.seats["client-01"]
            if service.journal.rounds not in cut and service.callbacks.state == "training" and seat._link is not None:
                cut.add(service.journal.rounds)
                seat._link.close()
            threading.Event().wait(0.001)
        for thread, failure in joined:
            thread.join(30)
            assert not failure
    assert "round lost" not in events and events.count("joined") > 3
    assert rehearsal.deployed() == rehearsal.alone()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"run": "a"}', b"cos\nsystem\n(S'true'\ntR."])
def test_a_damaged_server_folder_is_reported(rehearsal: Rehearsal, content: bytes) -> None:
    with rehearsal.service():
        pass
    (rehearsal.folder / "server/federation.json").write_bytes(content)
    with rehearsal.service() as service:
        pass
    assert isinstance(service.failure[0], CheckpointError) and "federation.json" in str(service.failure[0])


@pytest.mark.parametrize("both", [False, True], ids=["in the server's file", "in the folder too"])
def test_a_server_that_continues_with_another_setting_is_refused(rehearsal: Rehearsal, both: bool) -> None:
    with rehearsal.service():
        pass
    changed = rehearsal.config.with_(lr=0.5)
    if both:
        (rehearsal.folder / "server/config.toml").write_text(changed.to_toml())
    rehearsal.plan = replace(rehearsal.plan, config=changed)
    about = (rehearsal.folder / "server/federation.json").read_bytes()
    with rehearsal.service() as service:
        pass
    assert isinstance(service.failure[0], ConfigError)
    assert "lr = 0.5, in the checkpoint 0.001" in str(service.failure[0])
    assert (rehearsal.folder / "server/federation.json").read_bytes() == about


def test_fewer_than_three_clients_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="min_clients"):
        Rehearsal(tmp_path, clients=2)


def test_a_public_set_that_differs_from_the_invitation_is_refused(rehearsal: Rehearsal) -> None:
    other = replace(rehearsal.invitation("client-00"), public_sha256="0" * 64, contract=None)
    with rehearsal.service():
        _, failure = rehearsal.join_in_thread("client-00", invitation=other)
        wait_for(lambda: failure)
    assert isinstance(failure[0], Refused) and failure[0].code == Code.PUBLIC_SET


def test_sites_with_their_own_data_and_models_need_only_a_public_file_at_the_server(
    tmp_path: Path, custom_factory: str
) -> None:
    x, y = synthetic_images(200)
    np.savez(tmp_path / "public.npz", x=x[:40])
    tables = [{"name": site} for site in SITES]
    rehearsal = Rehearsal(tmp_path, {"n_classes": 3}, export=False, clients=tables, public=str(tmp_path / "public.npz"))
    (tmp_path / "sites").mkdir()
    for index, site in enumerate(SITES):
        np.savez(tmp_path / "sites" / f"{site}.npz", x=x[40 + index :: 3], y=y[40 + index :: 3])
    with rehearsal.service() as service:
        joined = [
            rehearsal.join_in_thread(site, model=model)
            for site, model in zip(SITES, ("auto", "mlp-small", custom_factory), strict=True)
        ]
        wait_for(lambda: service.folder.summary.exists() or any(failure for _, failure in joined))
        assert [failure for _, failure in joined] == [[], [], []]


@pytest.fixture
def custom_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A site's own module, which creates a learner that is not an nn.Module."""
    code = (
        "from fedal.learners.torch_learner import TorchLearner\n"
        "from torch import nn\n"
        "def make(n_classes):\n"
        "    return TorchLearner(nn.Sequential(nn.Flatten(), nn.Linear(16, n_classes)))\n"
    )
    (tmp_path / "site_code.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return "site_code:make"
