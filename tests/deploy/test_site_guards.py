"""A site guards itself: its best model, its own code, its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from commands import fedal
from deployments import SITES, Rehearsal, digest, wait_for
from fedal.deploy.best import BestState, KeptState, is_far_below, is_judged
from fedal.deploy.refusals import Code
from fedal.records.checkpoint import load_newest, model_digest
from fedal.records.model_files import read_model_file
from fedal.simulate.run import run
from hostile_servers import BEHAVIOURS, ROUNDS, TAU, WEIGHTS, HostileServer, instead_of, join, pb, with_fedavg

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers, self.passes = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3)), 0

    def forward(self, x):
        return self.layers(x)

class Fragile(Net):
    def forward(self, x):
        if self.training and len(x) == 8:  # a batch: the checks before the start use other sizes
            raise ValueError("out of cheese")
        return self.layers(x)

def small():
    return Net(5)

def large():
    return Net(9)

def fragile():
    return Fragile(5)

def trained():  # tells the classes of `write_site_data` apart
    net = nn.Linear(6, 3)
    nn.init.zeros_(net.bias)
    nn.init.eye_(net.weight)
    return net
"""


def test_what_counts_as_far_below() -> None:
    assert not is_far_below(0.8, 1.0, 10**6)  # exactly 0.2
    assert is_far_below(0.79, 1.0, 10**6)
    assert not is_far_below(0.5, 0.9, 10)  # 0.4 <= 0.2 + 2 sqrt((0.09 + 0.25) / 10) = 0.57
    assert is_far_below(0.5, 0.9, 100)  # 0.4 > 0.2 + 0.117


def test_the_best_state_is_kept_and_outlives_the_process(tmp_path: Path) -> None:
    said: list[str] = []
    best = BestState(tmp_path / "best", 100, 60, said.append)
    assert [rounds for rounds in range(1, 13) if best.is_due()] == [1, 4, 7, 10]
    for rounds, accuracy in ((3, 0.5), (6, 0.9), (9, 0.89), (12, 0.3), (15, 0.2)):
        best.measured(rounds, accuracy, lambda rounds=rounds: {"w": torch.tensor([float(rounds)])})  # type: ignore[misc]
    best.write()
    assert len(said) == 1  # one warning, not one per round
    assert (
        "after round 12 the accuracy on this site's held-out data is 0.3000, far below the 0.9000 of round 6" in said[0]
    )
    again = BestState(tmp_path / "best", 100, 60, said.append)
    assert (again.rounds, again.value) == (6, 0.9)
    assert again.is_far_above(0.3) and not again.is_far_above(0.89)
    state = again.state()
    assert state is not None and state["w"].tolist() == [6.0]


def test_nothing_is_judged_without_samples(tmp_path: Path) -> None:
    best = BestState(tmp_path / "best", 0, 60, print)
    assert not best.is_due() and not best.is_far_above(0.0)


def test_a_better_state_waits_in_memory_until_writing_is_cheap_or_asked_for(tmp_path: Path) -> None:
    best = BestState(tmp_path / "best", 100, 60, print)
    for rounds, accuracy in ((1, 0.5), (4, 0.6)):
        best.measured(rounds, accuracy, lambda rounds=rounds: {"w": torch.tensor([float(rounds)])})  # type: ignore[misc]
    held = best.state()
    assert held is not None and held["w"].tolist() == [4.0]
    on_disk = load_newest(tmp_path / "best", print)
    assert on_disk is not None and on_disk[0] == 1, "the first write has just ended"
    best.write()
    again = BestState(tmp_path / "best", 100, 60, print)
    assert (again.rounds, again.value) == (4, 0.6)


def test_a_damaged_best_state_is_no_reason_to_stop(tmp_path: Path) -> None:
    said: list[str] = []
    BestState(tmp_path / "best", 100, 60, said.append).measured(3, 0.5, dict)
    for path in (tmp_path / "best").glob("round-*.json"):
        path.write_text("{")
    again = BestState(tmp_path / "best", 100, 60, said.append)
    assert again.state() is None and not again.is_far_above(0.0)
    assert any("warning" in text for text in said)


@pytest.mark.processes
def test_a_model_that_a_server_ruins_is_replaced_by_the_site_s_best(tmp_path: Path) -> None:
    behave, _ = BEHAVIOURS["wrong means and gradients of 1e6, late"]
    with HostileServer(behave) as server:
        ruined = join(tmp_path / "ruined", server)
    assert re.search(
        r"warning: after round \d the accuracy on this site's held-out data is 0\.\d+, far below the", ruined.err
    )
    assert f"finished after {ROUNDS} rounds, with the model of round" in ruined.err
    best = load_newest(tmp_path / "ruined/state/best", print)
    assert best is not None and best[0] <= ROUNDS // 2 and best[1]["accuracy"] > 0.9
    assert model_digest(best[1]["state"]["learner"]) == digest(tmp_path / "ruined/trained.safetensors")
    about, _ = read_model_file(tmp_path / "ruined/trained.safetensors")
    assert about.training.iterations == best[0] * TAU, "those of the model, not of the run"
    assert digest(tmp_path / "ruined/trained.final.safetensors") != digest(tmp_path / "ruined/trained.safetensors")
    saved = [tmp_path / f"ruined/trained{end}" for end in (".safetensors", ".final.safetensors", ".json")]
    assert {oct(path.stat().st_mode & 0o777) for path in saved} == {"0o600"}, "as private as the data they learned from"
    with HostileServer() as server:
        honest = join(tmp_path / "honest", server)
    assert "far below" not in honest.err
    assert f"finished after {ROUNDS} rounds: " in honest.err
    assert not (tmp_path / "honest/trained.final.safetensors").exists()


@pytest.mark.processes
def test_a_site_s_own_model_fails_with_one_line_that_names_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guard_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    with HostileServer() as server:
        answer = join(tmp_path, server, model="guard_nets:fragile")
    assert answer.code == 1
    assert "error: round 0, exchange 0: ValueError: out of cheese (guard_nets.py, line 15, in forward)." in answer.err


@pytest.mark.processes
def test_a_changed_model_is_named_when_a_site_rejoins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guard_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    stops = instead_of("finished", pb.FromServer(refusal=pb.Refusal(code="FEDAL-E108", text="revoked.")))
    with HostileServer(stops) as server:
        first = join(tmp_path, server, model="guard_nets:small")
        assert f"stopped: the state after {ROUNDS} rounds is in {tmp_path / 'state'}" in first.err
        answer = join(tmp_path, server, model="guard_nets:large")
    assert answer.code == 2
    assert "does not fit this model" in answer.err
    assert "Join with the --model that it was saved with, or choose another --state folder." in answer.err


@pytest.mark.processes
def test_a_model_that_a_server_ruins_at_once_is_not_saved_as_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All states after the first round are bad, so the best of them is too. The site brought a good one."""
    (tmp_path / "guard_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    allow, (behave, _) = ("--allow", "parameters,architecture"), WEIGHTS["weights of 1e6"]
    with HostileServer(with_fedavg(behave)) as server:
        ruined = join(tmp_path / "ruined", server, *allow, model="guard_nets:trained")
    assert ruined.code == 1
    assert re.search(
        r"warning: after round 1 the accuracy .* is 0\.\d+, far below the [01]\.\d+ that it brought", ruined.err
    )
    assert re.search(
        rf"error: {Code.UNTRAINED}: the accuracy on .* is 0\.\d+ after \d rounds \(.*/trained.final.safetensors\), far "
        r"below the [01]\.\d+ of the model that it brought. Nothing is saved as trained.",
        ruined.err,
    )
    assert not (tmp_path / "ruined/trained.safetensors").exists()
    assert (tmp_path / "ruined/trained.final.safetensors").exists()
    with HostileServer(with_fedavg(WEIGHTS["honest"][0])) as server:
        honest = join(tmp_path / "honest", server, *allow, model="guard_nets:trained")
    assert honest.code == 0 and "far below" not in honest.err


@pytest.mark.processes
def test_a_run_that_ended_without_a_site_leaves_it_without_a_model(tmp_path: Path) -> None:
    """The server says that the others went on: the site continues with its newest state, which is the first."""

    def behave(server: HostileServer, message: pb.FromServer) -> list[pb.FromServer]:
        if message.WhichOneof("body") == "welcome":
            message.welcome.behind = True
        if message.WhichOneof("body") == "begin":
            return [pb.FromServer(finished=pb.Finished(rounds=ROUNDS))]
        return [message]

    with HostileServer(behave) as server:
        answer = join(tmp_path, server)
    assert answer.code == 1
    assert f"{Code.UNTRAINED}: the run ended after {ROUNDS} rounds without this site" in answer.err
    assert not (tmp_path / "trained.safetensors").exists()


@pytest.mark.parametrize("save", ["taken", "file/below.safetensors"])
def test_a_file_that_cannot_be_written_is_noticed_before_training(tmp_path: Path, save: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "private.npz").write_text("")
    answer = fedal("join", "--server", "127.0.0.1:1", "--name", "site-1", "--data", tmp_path / "private.npz",
                   "--state", tmp_path / "state", "--save", tmp_path / save, "--insecure", "--patience", 0)  # fmt: skip
    assert answer.code == 2
    assert f"{tmp_path / save}: cannot be written" in answer.err
    assert "Choose another --save." in answer.err


@pytest.mark.processes
def test_a_share_that_sites_hold_out_gives_the_bits_of_a_simulation_that_holds_it_out(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    with rehearsal.service() as service:
        sites = [rehearsal.join_in_thread(site, own_validation=0.25) for site in SITES]
        wait_for(service.folder.summary.exists)
        for thread, _ in sites:
            thread.join(30)
    assert [failure for _, failure in sites] == [[], [], []]
    run(rehearsal.config.with_(own_validation=0.25), tmp_path / "held-out")
    alone = {site: digest(tmp_path / f"held-out/models/{site}.safetensors") for site in SITES}
    assert rehearsal.deployed() == alone != rehearsal.alone()


@pytest.mark.processes
def test_a_site_judges_the_run_on_the_share_it_holds_out(tmp_path: Path) -> None:
    behave, _ = BEHAVIOURS["wrong means and gradients of 1e6, late"]
    with HostileServer(behave) as server:
        answer = join(tmp_path, server, "--own-validation", "0.5")
    assert "mlp-small, 60 private samples" in answer.err
    assert f"finished after {ROUNDS} rounds, with the model of round" in answer.err
    with HostileServer() as server:
        answer = join(tmp_path / "none", server, "--own-validation", "0.001")
    assert answer.code == 2 and "own_validation = 0.001" in answer.err


def test_by_a_metric_that_should_be_low_the_lowest_is_kept_and_of_equals_the_first(tmp_path: Path) -> None:
    kept = KeptState(tmp_path, "log_loss", print)
    values = ((1, 0.7), (2, 0.4), (3, 0.4), (4, 0.5))
    taken = [kept.offer(rounds, value, lambda n=rounds: {"w": torch.tensor([n])}) for rounds, value in values]  # type: ignore[misc]
    assert taken == [True, True, False, False]
    kept.write()
    again = KeptState(tmp_path, "log_loss", print)
    state = again.state()
    assert (again.rounds, again.value) == (2, 0.4) and state is not None and state["w"].tolist() == [2]
    assert [rounds for rounds in range(1, 46) if is_judged(rounds, 45)] == [*range(2, 45, 2), 45]


@pytest.mark.processes
def test_the_best_models_of_sites_have_the_bits_of_a_simulation_that_keeps_them(tmp_path: Path) -> None:
    rehearsal, metric = Rehearsal(tmp_path), "calibration_error"  # grows as untrained models become certain
    with rehearsal.service() as service:
        sites = [rehearsal.join_in_thread(site, own_validation=0.25, keep_best=metric) for site in SITES]
        wait_for(service.folder.summary.exists)
        for thread, _ in sites:
            thread.join(30)
    assert [failure for _, failure in sites] == [[], [], []]
    settings = {"own_validation": 0.25, "keep_best": True, "metrics": (metric,), "eval_every": "auto"}
    finished = run(rehearsal.config.with_(**settings), tmp_path / "held-out")
    best = {row["client"]: row["best_iteration"] for row in finished.client_metrics if row["final"]}
    for site in SITES:
        for ours, theirs in (("", "models"), (".best", "best")):
            assert digest(tmp_path / f"{site}{ours}.safetensors") == digest(
                tmp_path / f"held-out/{theirs}/{site}.safetensors"
            )
        found, _ = read_model_file(tmp_path / f"{site}.best.safetensors")
        assert found.training.iterations == best[site]
        assert found.models[site].before.keys() == found.models[site].metrics.keys()
        assert found.models[site].before != found.models[site].metrics
    assert min(best.values()) < rehearsal.config.total_rounds * rehearsal.config.tau, "not only the final models"


def test_what_keeping_the_best_needs_is_said_before_the_start(tmp_path: Path) -> None:
    words = (
        "join",
        "--server",
        "127.0.0.1:1",
        "--name",
        "a",
        "--data",
        tmp_path / "a.npz",
        "--insecure",
        "--keep-best",
    )
    share, save = ("--own-validation", "0.2"), ("--save", tmp_path / "a.safetensors")
    told = {
        ("accurracy", *share, *save): "--keep-best accurracy: no such metric; expected one of accuracy, balanced_",
        ("pr_auc", *save): "--keep-best pr_auc: needs data to choose by. Try --own-validation 0.2.",
        ("pr_auc", *share): "--keep-best pr_auc: needs a file to save to. Add --save FILE.",
    }
    for more, text in told.items():
        answer = fedal(*words, *more)
        assert answer.code == 2 and text in answer.err
    assert list(tmp_path.iterdir()) == []
