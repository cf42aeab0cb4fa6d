"""Numbers that a method observes: columns of the record with their own names, curves of the report, never bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedal
from commands import fedal as command
from e2e.lives import outcome
from fedal.deploy.player import SitePlayer
from fedal.engine.player import LocalPlayer, StackPlayer
from fedal.engine.ray import ClientGroup, RayPlayer
from fedal.errors import FedalError, RunError
from fedal.metrics import METRICS
from fedal.records.observed import COLUMNS, mean_numbers, numbers
from fedal.report.measures import ALL
from fedal.report.page import write_report
from observers import StopAt

METHOD = """
import torch
from fedal.methods.outputs import local
from fedal.methods.method import Method
from fedal.methods.server import ServerLogic
class Client(local.METHOD.client):
    def round(self, t):
        yield from super().round(t)
        self.observed["{client}"] = torch.tensor(t + 0.25 * int(self.client_id[-1]))
        if t % 2:
            self.observed["odd"] = 1
class Server(ServerLogic):
    def round(self, t, clients):
        self.observed["{server}"] = -2.0 * t
        return super().round(t, clients)
METHOD = Method("watching", "observes", local.METHOD.options, Client, Server)
"""
SETTINGS = dict(clients=2, models="mlp-small", rounds=4, tau=2, batch_size=8, eval_every=2, checkpoint_every=1)


@pytest.fixture
def watching(custom_module: Callable[[str, str], None]) -> Callable[..., fedal.Config]:
    def make(client: str = "loss_of_mine", server: str = "depth", **more: Any) -> fedal.Config:
        custom_module("watching_method", METHOD.replace("{client}", client).replace("{server}", server))
        return fedal.Config(method="watching_method:METHOD", **{**SETTINGS, **more})  # type: ignore[arg-type]

    return make


def test_both_halves_record_numbers_of_the_round(watching: Callable[..., fedal.Config], tmp_path: Path) -> None:
    run = fedal.run(watching(), tmp_path / "run")
    ends = [row for row in run.metrics if row["phase"] == "after_global" and row["round"]]
    assert [row["depth"] for row in ends] == [0.0, -2.0, -4.0, -6.0, -6.0]  # the last row is the final one
    assert [row["loss_of_mine"] for row in ends] == [0.125, 1.125, 2.125, 3.125, 3.125]
    assert [row.get("odd") for row in ends] == [None, 1.0, None, 1.0, 1.0]  # nothing stays from the round before
    clients = [row for row in run.client_metrics if row["phase"] == "after_global" and row["round"]]
    assert [row["loss_of_mine"] for row in clients[:4]] == [0.0, 0.25, 1.0, 1.25]
    assert all("loss_of_mine" not in row for row in run.client_metrics if row["phase"] == "after_local")
    page, problems = write_report([tmp_path / "run"])
    text = page.read_text()
    assert not problems
    for name in ("depth", "loss_of_mine", "odd"):
        assert re.search(rf'data-measure="{name}"', text) and f'"{name}"' in text
    plain = fedal.run(fedal.Config(method="local", **SETTINGS), tmp_path / "plain")  # type: ignore[arg-type]
    for name in ("client-00", "client-01"):
        file = f"models/{name}.safetensors"
        assert (plain.path / file).read_bytes() == (run.path / file).read_bytes()


def test_a_run_resumed_after_its_last_round_still_records_them(
    watching: Callable[..., fedal.Config], tmp_path: Path
) -> None:
    config = watching()
    fedal.run(config, tmp_path / "whole")
    with pytest.raises(FedalError, match="stopped"):
        fedal.run(config, tmp_path / "stopped", callbacks=[StopAt(4)])
    fedal.run(config, tmp_path / "killed")
    (tmp_path / "killed/summary.json").unlink()  # killed after the last checkpoint
    for name in ("stopped", "killed"):
        fedal.resume(tmp_path / name, trust=True)
        assert outcome(tmp_path / name) == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"client": "test_accuracy"}, 'client "client-00" observed "test_accuracy", which is a column of the record'),
        ({"server": "seconds"}, 'the server observed "seconds", which is a column'),
        ({"client": "two words"}, "observed 'two words': expected a name of letters, digits and underscores"),
        ({"server": "a" * 61}, "at most 60 characters"),
        ({"client": "same", "server": "same"}, 'both clients and the server observed "same"'),
    ],
)
def test_names_are_checked(
    watching: Callable[..., fedal.Config], tmp_path: Path, names: dict[str, str], says: str
) -> None:
    with pytest.raises(RunError, match=re.escape(says)):
        fedal.run(watching(**names), tmp_path / "run")


def test_a_value_is_one_number() -> None:
    assert numbers({"a": torch.ones(1), "b": 2}, "x") == {"a": 1.0, "b": 2.0}
    for value in (torch.ones(2), "text", None):
        with pytest.raises(RunError, match="expected one number"):
            numbers({"a": value}, "the server")
    assert mean_numbers({"anna": {"a": 1.0}, "ben": {"a": 2.0, "b": 5.0}}, {}) == {"a": 1.5, "b": 5.0}


def test_every_column_of_a_run_is_known(tmp_path: Path) -> None:
    run = fedal.run(
        fedal.Config(
            **{**SETTINGS, "rounds": 1},
            instruments=("forgetting", "zeta", "gradients"),
            validation=0.1,
            own_validation=0.1,
        ),  # type: ignore[arg-type]
        tmp_path / "run",
    )
    by_fedal = {"discriminator_accuracy", "adversarial_grad_norm", "discriminator_lr"}  # observed by the method
    for row in run.metrics + run.client_metrics:
        assert set(row) <= COLUMNS | by_fedal
    of_data = {f"{data}_{name}" for data in ("test", "validation", "own_validation") for name in METRICS}
    assert {*of_data, *(measure.key for measure in ALL)} <= COLUMNS | by_fedal


# players


class Logic:
    client_id = "anna"

    def __init__(self) -> None:
        self.observed: dict[str, Any] = {"stale": 1.0}
        self.learner = self

    def round(self, t: int) -> Any:
        self.observed["a"] = torch.tensor([1.0, 2.0])
        self.observed["b"] = 3
        yield from ()

    def forget(self) -> None: ...


def test_players_pass_on_the_numbers_of_the_round() -> None:
    player = LocalPlayer(Logic())  # type: ignore[arg-type]
    player.begin(0)
    assert player.observed() == {"anna": {}}
    player.take()
    assert player.observed()["anna"].keys() == {"a", "b"}
    player.forget()
    assert player.observed() == {"anna": {}}
    stack = StackPlayer(Logic(), {"ben": None, "cleo": None})  # type: ignore[arg-type, dict-item]
    stack.begin(0)
    stack.take()
    assert stack.observed() == {"ben": {"a": 1.0, "b": 3}, "cleo": {"a": 2.0, "b": 3}}


def test_an_actor_hands_them_over_with_the_end_of_the_round() -> None:
    group = ClientGroup(lambda names, done: {"anna": Logic()}, ("anna",))  # type: ignore[arg-type, dict-item]
    player = RayPlayer("anna", lambda name, *args: lambda: getattr(group, name)("anna", *args), lambda *_: None)
    player.begin(0)
    assert player.take() is None
    assert player.observed()["anna"].keys() == {"a", "b"}


def test_a_site_sends_none() -> None:
    assert SitePlayer.observed(object()) == {}  # type: ignore[arg-type]
    from fedal.deploy import fedal_pb2 as pb

    assert [field.name for field in pb.Done.DESCRIPTOR.fields] == [
        "incarnation", "round", "exchange", "saved", "metrics",
    ]  # fmt: skip


@pytest.mark.usefixtures("empty_folder")
def test_the_example_observes_in_both_halves(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples/custom_method.py"
    (Path.cwd() / "vote_method.py").write_text(source.read_text())
    words = ["--clients", 2, "--models", "mlp-small", "--rounds", 1, "--set", "tau=2", "--set", "eval_every=2"]
    answer = command("run", *words, "--method", "vote_method:METHOD", "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    final = fedal.load_run(tmp_path / "run", trust=True).final
    assert 0 < final["vote_confidence"] <= 1 and 0 <= final["vote_agreement"] <= 1
