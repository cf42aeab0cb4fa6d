"""Attackers of a simulation: each attack by hand, the setting's errors, and the same lies in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedal
from fedal.config import Config
from fedal.config.attackers import ABSENT, ATTACKS, Attacker, attackers_of
from fedal.deploy.plan import plan_federation
from fedal.deploy.settings import Deployment
from fedal.errors import ConfigError
from fedal.messages import LARGEST, Outputs
from fedal.seeding import raw_bits
from fedal.simulate.assemble import assemble
from fedal.simulate.attackers import FUNCTIONS, Forger, Scene
from fedal.simulate.participation import absence
from splits import InOrder, differing_clients, run_rounds, tiny_split, with_logics

ROSTER = tuple(f"client-{index:02}" for index in range(5))
F = torch.tensor([[3.0, 1.0, 2.0, -1.0]])
HONEST = torch.tensor([[[9.0, 0.0, 1.0, 0.5]], [[2.0, 0.0, 4.0, 0.5]]])


def scene(strength: float = 10.0, honest: Tensor = HONEST, **changes: Any) -> Scene:
    return Scene(**{
        "strength": strength, "honest": honest, "share": 0.2, "draws": lambda n: raw_bits(7, 0, n), "own_class": 2,
        **changes,
    })  # fmt: skip


def test_every_attack_of_the_setting_is_a_function() -> None:
    assert FUNCTIONS.keys() == ATTACKS.keys() - {ABSENT}


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("negate", [-30.0, -10.0, -20.0, 10.0]),
        ("scale", [30.0, 10.0, 20.0, -10.0]),
        ("constant", [0.0, 0.0, 10.0, 0.0]),  # its own class
        ("collusion", [10.0, 0.0, 0.0, 0.0]),
        ("label-flip", [-10.0, 20.0, 10.0, 30.0]),
        ("pcfdla", [-10.0, -10.0, 10.0, -10.0]),  # the runner-up is class 2
        ("lma", [0.0, 10.0, 0.0, 0.0]),  # both honest clients find class 1 least likely
    ],
)
def test_an_attack_of_a_hand_case(attack: str, expected: list[float]) -> None:
    assert FUNCTIONS[attack](F, scene()).tolist() == [expected]


def test_random_uploads_are_normal_with_the_strength_as_their_deviation() -> None:
    f = torch.zeros(400, 50)
    drawn = FUNCTIONS["random"](f, scene(3.0))
    assert float(drawn.mean()) == pytest.approx(0, abs=0.1) and float(drawn.std()) == pytest.approx(3, rel=0.02)
    assert torch.equal(drawn, FUNCTIONS["random"](f, scene(3.0)))
    assert not torch.equal(drawn, FUNCTIONS["random"](f, scene(3.0, draws=lambda n: raw_bits(7, 1, n))))


def test_hips_sends_the_honest_row_that_harms_most() -> None:
    honest = torch.tensor([[[8.0, 0.0]], [[8.0, 0.0]], [[0.0, 8.0]]])
    assert FUNCTIONS["hips"](torch.zeros(1, 2), scene(honest=honest)).tolist() == [[0.0, 8.0]]


def table(*entries: str) -> dict[str, Attacker]:
    return attackers_of(entries, ROSTER)


def test_entries_name_clients_or_the_last_share_of_the_roster() -> None:
    assert table("client-01:scale:3@20")["client-01"] == Attacker("client-01", "scale", 3.0, 20)
    assert list(table("0.4:negate")) == ["client-03", "client-04"]
    assert table(".2:lma")["client-04"] == Attacker("client-04", "lma", 20.0, 0)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        (["client-01"], "expected who:attack:strength@round"),
        (["client-01:bribe"], 'there is no attack "bribe". Known: negate, scale'),
        (["client-09:negate"], 'there is no client "client-09". There are: client-00'),
        (["0.1:negate"], "0.1 of 5 clients is less than one"),
        (["client-01:negate:0"], 'the strength is "0"; expected a number above 0, at most 1e+06'),
        (["client-01:negate:nan"], 'the strength is "nan"'),
        (["client-01:negate:1e7"], 'the strength is "1e7"'),
        (["client-01:hips:3"], "hips has no strength"),
        (["client-01:negate@-1"], 'the round is "-1"; expected 0 or more'),
        (["client-04:negate", "0.2:scale"], 'client "client-04" already has an attack'),
        ([f"{name}:negate" for name in ROSTER], "all 5 clients attack; leave at least one honest"),
    ],
)
def test_a_wrong_entry_is_explained(entries: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(method="fedmd", clients=5, attackers=",".join(entries))
    assert error in str(caught.value) and str(caught.value).startswith("attackers: ")


@pytest.mark.parametrize(("method", "kind"), [("fedavg", "Weights"), ("cfd", "Codes"), ("feddf", "Weights")])
def test_methods_that_upload_more_than_outputs_are_refused_by_name(method: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"attackers: they forge outputs; {method} uploads {kind}"):
        Config(method=method, clients=5, attackers="0.2:negate")


def test_serve_refuses_attackers_and_sites_never_hear_of_them() -> None:
    config = Config(method="fedmd", clients=5, attackers="0.2:negate")
    assert "attackers" not in config.for_sites()
    with pytest.raises(ConfigError, match="attackers: `fedal serve` refuses this setting"):
        plan_federation(config, Deployment())


# in a federation


def test_only_attackers_lie_from_their_round_on_and_never_beyond_the_range() -> None:
    forge = Forger(table("client-00:scale:1e6@1", "client-03:collusion"), seed=0, tau=1)
    uploads = {name: Outputs(F * (index + 1)) for index, name in enumerate(ROSTER)}
    first, second = forge(0, 0, uploads), forge(1, 0, uploads)
    assert [name for name in ROSTER if first[name] is not uploads[name]] == ["client-03"]
    assert [name for name in ROSTER if second[name] is not uploads[name]] == ["client-00", "client-03"]
    assert list(second) == list(ROSTER)
    assert second["client-00"].values.tolist() == [[LARGEST, LARGEST, LARGEST, -LARGEST]]


def test_the_class_of_a_constant_attacker_is_its_own_and_stays() -> None:
    forge = Forger(table("0.8:constant:1"), seed=0, tau=1)
    uploads = {name: Outputs(F) for name in ROSTER}
    sent = [torch.cat([forge(t, 0, uploads)[name].values for name in ROSTER[1:]]) for t in range(2)]
    assert torch.equal(sent[0], sent[1]) and len(set(sent[0].argmax(-1).tolist())) > 1


def federation(method: str = "fedmd", **settings: Any) -> Any:
    config = Config(method=method, clients=5, models="mlp-small", batch_size=8, tau=2, **settings)
    made = assemble(config, tiny_split(config.client_names), InOrder()).federation
    return made if config.stacked is True else with_logics(made)


@pytest.mark.parametrize("method", ["fedmd", "fedal", "mhat", "fccl", "perfed-ckt"])
@pytest.mark.parametrize("attack", ["lma", "random"])
def test_attacks_change_what_honest_clients_learn(method: str, attack: str) -> None:
    options = {"pretrain_iterations": 0} if method == "fccl" else {}
    attacked, free = (federation(method, attackers=a, options=options) for a in (f"0.2:{attack}", ()))
    assert set(ROSTER[:4]) & set(differing_clients(run_rounds(attacked, 2), run_rounds(free, 2)))


def test_attackers_before_their_round_change_no_bit() -> None:
    late, free = federation(attackers="0.4:negate@2"), federation()
    assert differing_clients(run_rounds(late, 2), run_rounds(free, 2)) == []


def test_lies_are_the_same_in_a_stack() -> None:
    stacked, single = (federation(attackers="0.4:hips", stacked=s, precision="fp64") for s in (True, False))
    for each in (stacked, single):
        run_rounds(each, 2)
    weights = [
        {n: state()["learner"]["model"] for p in each.players for n, state in p.states().items()}
        for each in (stacked, single)
    ]
    for name in ROSTER:
        for found, expected in zip(weights[0][name].values(), weights[1][name].values(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("stacked", [True, False])
def test_an_absent_client_takes_no_part_and_stops_no_stack(tmp_path: Path, stacked: bool) -> None:
    settings: dict[str, Any] = dict(
        method="fedmd", clients=5, models="mlp-small", tau=2, batch_size=8, eval_every=4, stacked=stacked,
        attackers="client-03:absent@2",
    )  # fmt: skip
    run = fedal.run(Config(**settings, iterations=8), tmp_path / "run")
    took_part = {row["round"]: row["participants"] for row in run.metrics if not row["final"]}
    assert (took_part[2], took_part[4]) == (5, 4)
    early = fedal.run(Config(**settings, iterations=4), tmp_path / "early")
    for client in ROSTER:
        moved = [not torch.equal(a, b) for a, b in zip(weights(run, client), weights(early, client), strict=True)]
        assert any(moved) == (client != "client-03")


def weights(run: fedal.Run, client: str) -> list[Tensor]:
    return [value for value in run.model(client).state_dict().values() if value.is_floating_point()]


def test_absence_begins_with_its_round_and_forges_nothing() -> None:
    config = Config(method="fedmd", clients=5, attackers="0.2:absent@1")
    away = absence(config, 1)
    assert absence(config, 0) is None and away is not None
    assert [away(name, 0) for name in ROSTER] == [False] * 4 + [True]
    uploads = {name: Outputs(F) for name in ROSTER}
    assert Forger(config.attacker_table, 0, 1)(1, 0, uploads) == uploads


def test_a_run_records_honest_accuracy_and_resumes_with_the_same_lies(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(
        method="fedmd", clients=5, tau=2, batch_size=8, eval_every=4, attackers="client-01:random:5,client-04:lma"
    )
    whole = fedal.run(Config(**settings, iterations=8), tmp_path / "whole")
    fedal.run(Config(**settings, iterations=4), tmp_path / "parts")
    parts = fedal.resume(tmp_path / "parts", iterations=8)
    assert {k: v for k, v in whole.final.items() if k != "seconds"} == {
        k: v for k, v in parts.final.items() if k != "seconds"
    }
    rows = [row for row in whole.client_metrics if row["final"]]
    honest = [row["test_accuracy"] for row in rows if row["client"] not in ("client-01", "client-04")]
    assert whole.final["honest_test_accuracy"] == pytest.approx(np.mean(honest), abs=1e-12)
    assert whole.final["honest_test_accuracy_min"] == min(honest)


def test_without_attackers_there_is_no_honest_column(tmp_path: Path) -> None:
    final = fedal.run(Config(method="local", clients=2, iterations=2, tau=1), tmp_path / "run").final
    assert not [key for key in final if key.startswith("honest")]
