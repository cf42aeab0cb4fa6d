"""Participation: who takes part in a round, what it costs the others (nothing), and what the record says about them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedal
from e2e.lives import outcome
from fedal import methods
from fedal.config import Config
from fedal.deploy.plan import plan_federation
from fedal.deploy.settings import Deployment
from fedal.errors import ConfigError, Stopped
from fedal.methods.parameters.groups import GroupServer
from fedal.records.rows import over_clients
from fedal.seeding import in_drawn_order, raw_bits
from fedal.simulate.assemble import assemble
from fedal.simulate.build import steps_per_iteration
from fedal.simulate.participation import absence
from observers import StopAt
from splits import QUICK, InOrder, restore, same_bits, state_of, tiny_split, with_logics

SETTINGS: dict[str, Any] = dict(
    method="fedal", clients=6, models="mlp-small", tau=2, batch_size=8, rounds=6, participation=0.5, eval_every=4,
    eval_samples=60, workers=1, checkpoint_every=1,
)  # fmt: skip


def cohort(config: Config, t: int) -> list[str]:
    away = absence(config, t)
    return [name for name in config.client_names if away is None or not away(name, 0)]


# the draw


def test_the_order_of_names_is_that_of_their_draws() -> None:
    draws = raw_bits(7, 3, 3).tolist()
    expected = [name for _, name in sorted(zip(draws, "abc", strict=True))]
    assert in_drawn_order("abc", 7, 3) == expected
    longer = in_drawn_order("abcdef", 7, 3)
    assert [name for name in longer if name in "abc"] == expected  # names added at the end change nothing
    assert len({tuple(in_drawn_order("abcdef", 7, step)) for step in range(9)}) > 5


@pytest.mark.parametrize(("participation", "size"), [(0.3, 3), (4, 4), (0.29, 2), (1.0, 10), (10, 10)])
def test_a_cohort_is_a_share_or_a_number_of_clients(participation: float, size: int) -> None:
    config = Config(method="fedmd", clients=10, participation=participation)
    assert [len(cohort(config, t)) for t in range(5)] == [size] * 5
    assert (absence(config, 0) is None) == (size == 10)


def test_a_share_of_a_hundred_clients_loses_none_to_rounding() -> None:
    assert Config(clients=100, participation=0.29).cohort_size == 29


def test_every_client_takes_part_equally_often() -> None:
    config = Config(clients=10, participation=3)
    count = Counter(name for t in range(1000) for name in cohort(config, t))
    assert len(count) == 10 and all(230 <= each <= 370 for each in count.values())  # 300 on average, deviation 14.5


def test_who_takes_part_depends_on_seed_and_round_alone() -> None:
    config, same = (
        Config(clients=10, participation=3, engine=engine, tau=tau) for engine, tau in (("threads", 5), ("ray", 2))
    )
    assert [cohort(config, t) for t in range(20)] == [cohort(same, t) for t in range(20)]
    assert cohort(config, 0) != cohort(config, 1)
    assert [cohort(config, t) for t in range(5)] != [cohort(config.with_(seed=1), t) for t in range(5)]


def test_a_client_that_is_left_out_is_in_no_cohort_and_costs_no_other_its_place() -> None:
    config = Config(method="fedmd", clients=10, participation=3, attackers="0.4:absent@5")
    free = config.with_(attackers=())
    assert all(cohort(config, t) == cohort(free, t) for t in range(5))
    for t in range(5, 30):
        found, away = cohort(config, t), set(config.client_names[6:])
        assert len(found) == 3 and not away & {*found}
        assert {*cohort(free, t)} - away <= {*found}


# what is refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (0, "participation = 0: expected a share above 0, up to 1.0, or an integer up to 10"),
        (-0.5, "participation = -0.5: expected a share above 0"),
        (1.5, "participation = 1.5: expected a share above 0, up to 1.0, or an integer"),
        (11, "participation = 11: expected a share .* up to 10"),
        ("some", "participation = 'some': expected a share up to 1.0, or a number of clients"),
        (0.1, r"participation = 0.1: 1 of 10 clients; fedal needs at least 2 in a round. Raise it"),
        (1, r"participation = 1: 1 of 10 clients; .* 1.0 is all of them"),
    ],
)
def test_a_participation_that_cannot_be_is_explained(given: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config(method="fedal", clients=10, participation=given)


def test_one_client_in_a_round_is_enough_where_nothing_is_exchanged() -> None:
    assert Config(method="local", clients=10, participation=1).cohort_size == 1


@pytest.mark.parametrize("method", [name for name in methods.names() if "every-client" in methods.get(name).needs])
def test_a_method_that_needs_every_client_says_so(method: str) -> None:
    with pytest.raises(
        ConfigError, match=f"participation = 0.5: {re.escape(method)} needs every client in every round.*fedmd"
    ):
        Config(method=method, clients=4, participation=0.5)
    assert Config(method=method, clients=4, participation=4).cohort_size == 4


def test_methods_whose_clients_rely_on_the_last_round_need_every_client() -> None:
    unable = {name for name in methods.names() if "every-client" in methods.get(name).needs}
    assert unable == {
        "feddf", "feddf-al", "fedgkd", "pfedsd", "fedcurv", "feddistill+", "fedgen", "fedcvae", "fccl", "fedkt",
    }  # fmt: skip


def test_a_server_refuses_to_draw_its_sites() -> None:
    config = Config(method="fedmd", clients=4, participation=0.5)
    with pytest.raises(ConfigError, match=r"participation = 0.5: only a simulation draws.*policy = continue"):
        plan_federation(config, Deployment())


# the round


class Untouchable:
    """A client whose player must not be called in a round that it sits out."""

    def __init__(self, player: Any) -> None:
        self.player, self.names, self.rounds = player, player.names, []

    def begin(self, t: int) -> None:
        self.rounds.append(t)
        self.player.begin(t)

    def __getattr__(self, name: str) -> Any:
        assert name not in ("forget", "give", "take", "observed") or self.rounds, name
        return getattr(self.player, name)


def test_an_absent_client_is_not_touched_and_the_server_hears_of_the_cohort_only() -> None:
    config = Config(**SETTINGS)
    federation = assemble(config, tiny_split(config.client_names), InOrder()).federation
    federation.players = [Untouchable(player) for player in federation.players]
    heard: list[list[str]] = []
    half = federation.server.round
    federation.server.round = lambda t, clients: heard.append([*clients]) or half(t, clients)  # type: ignore[method-assign, func-returns-value]
    assert federation.run_round(0, absence(config, 0)) == cohort(config, 0) == heard[0]
    assert {*federation.observed()} <= {*cohort(config, 0)}
    assert {p.names[0] for p in federation.players if p.rounds} == {*cohort(config, 0)}  # type: ignore[attr-defined]


COPE: dict[str, tuple[str, dict[str, Any]]] = {
    **{n: (n, QUICK.get(n, {})) for n in methods.names() if "every-client" not in methods.get(n).needs},
    "fedal with groups": ("fedal", {"discriminator_groups": 3}),
}


@pytest.mark.parametrize("name", COPE)
def test_every_method_that_copes_keeps_absent_clients_as_they_are_and_resumes_with_its_bits(name: str) -> None:
    method, options = COPE[name]
    config = Config(
        method=method, clients=4, models="mlp-small", tau=1, batch_size=8, lr=0.01, participation=2, options=options
    )

    def made() -> Any:
        return with_logics(assemble(config, tiny_split(config.client_names), InOrder()).federation)

    federation = made()
    for t in range(3):
        before = state_of(federation)["clients"]
        present = federation.run_round(t, absence(config, t))
        assert present == cohort(config, t)
        after = state_of(federation)["clients"]
        same = [name for name in config.client_names if same_bits(before[name], after[name])]
        assert same == [name for name in config.client_names if name not in present]
        if t == 1:
            halfway = state_of(federation)
    resumed = restore(made(), halfway)
    resumed.run_round(2, absence(config, 2))
    assert same_bits(state_of(resumed), state_of(federation))


# averages of weights: a cohort fetches the last one

FETCH = [n for n in methods.names() if issubclass(methods.get(n).server, GroupServer) and n in COPE]


def averaging(method: str, **more: Any) -> Config:
    options = {**dict(local_stages=1), **QUICK.get(method, {})}
    return Config(
        method=method, clients=4, models="mlp-small", tau=1, batch_size=8, lr=0.01, options=options, **more
    )  # fmt: skip


def federation_of(config: Config) -> Any:
    return with_logics(assemble(config, tiny_split(config.client_names), InOrder()).federation)


def test_the_methods_that_average_weights_and_cope() -> None:
    assert {*FETCH} == {
        "fedavg", "fedlsd", "fedntd", "fedssd", "fedrad", "fedbr", "fedreg", "kim-2024", "flashback", "fedftg", "dfrd",
    }  # fmt: skip


@pytest.mark.parametrize("method", FETCH)
def test_a_fetched_average_changes_nothing_for_clients_that_hold_it(method: str, monkeypatch: Any) -> None:
    plain, config = federation_of(averaging(method)), averaging(method, participation=1.0)
    monkeypatch.setattr(Config, "is_partial", True)  # everybody is present, and fetches all the same
    fetching = federation_of(config)
    for t in range(3):
        assert plain.run_round(t) == fetching.run_round(t) == list(config.client_names)
    assert same_bits(state_of(plain)["clients"], state_of(fetching)["clients"])
    weights = plain.clients["client-00"].learner.weights()
    size = sum(value.nbytes for value in weights.values())
    down = fetching.wire.down_bytes["client-00"] - plain.wire.down_bytes["client-00"]
    assert (down, fetching.wire.up_bytes) == (2 * size, plain.wire.up_bytes)  # a request holds no weights
    assert same_bits(fetching.server.learner.weights(), weights)  # what is evaluated as the server's model


def test_a_client_that_returns_starts_from_the_current_average_with_a_new_optimizer() -> None:
    config = averaging("fedavg", participation=2)
    federation, average, returned = federation_of(config), None, set()
    starts: dict[str, Any] = {}
    for name, logic in federation.clients.items():
        train = logic.local_training
        logic.local_training = lambda *a, name=name, logic=logic, train=train, **k: (
            starts.update({name: logic.learner.state_dict()}),
            train(*a, **k),
        )
    last: list[str] = []
    for t in range(8):
        starts.clear()
        held = {name: logic.learner.weights() for name, logic in federation.clients.items()}
        present = federation.run_round(t, absence(config, t))
        assert {*starts} == {*present}
        for name in present if t else []:
            assert same_bits(starts[name]["model"], average) and not starts[name]["optimizer"]
            if name not in last:
                returned.add(name)
                assert not same_bits(held[name], average)
        average, last = federation.clients[present[0]].learner.weights(), present
    assert len(returned) > 2


def test_a_run_of_fedavg_with_cohorts_resumes_with_its_bits_and_evaluates_the_average(tmp_path: Path) -> None:
    config = Config(**{**SETTINGS, "method": "fedavg", "rest": "disk"})
    whole = fedal.run(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "parts", callbacks=[StopAt(6)])
    assert outcome(whole.path) == outcome(fedal.resume(tmp_path / "parts").path)
    assert whole.final["server_test_accuracy"] > 0


# the record


def test_a_run_records_who_took_part_and_resumes_with_its_bits(tmp_path: Path) -> None:
    config = Config(**SETTINGS)
    whole = fedal.run(config, tmp_path / "whole").path
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "parts", callbacks=[StopAt(6)])
    with (tmp_path / "parts" / "participation.jsonl").open("a") as file:
        file.write('{"round": 3, "clients": ["of a round that was killed"]}\n')
    parts = fedal.resume(tmp_path / "parts").path
    assert outcome(whole) == outcome(parts)
    found = [json.loads(line) for line in (parts / "participation.jsonl").read_text().splitlines()]
    assert found == [{"round": t, "clients": cohort(config, t)} for t in range(6)]
    rows = [json.loads(line) for line in (parts / "clients.jsonl").read_text().splitlines()]
    assert all(
        row["participated"] == (row["client"] in cohort(config, row["round"] - 1)) for row in rows if row["round"]
    )


def test_everybody_by_number_has_the_bits_of_the_default_and_no_list(tmp_path: Path) -> None:
    both = [fedal.run(Config(**{**SETTINGS, "participation": p}), tmp_path / str(p)).path for p in (1.0, 6)]
    assert outcome(both[0]) == outcome(both[1])
    assert not (both[0] / "participation.jsonl").exists()


def test_the_error_of_a_sample_by_hand() -> None:
    row = over_clients("test_accuracy", [0.2, 0.4, 0.6], share=0.25)
    assert row["test_accuracy_error"] == pytest.approx(0.2 * np.sqrt(0.75 / 3))  # s = 0.2, three of twelve clients
    assert "test_accuracy_error" not in over_clients("test_accuracy", [0.2, 0.4, 0.6])
    assert "test_accuracy_error" not in over_clients("test_accuracy", [0.2], share=0.25)


def test_the_error_is_that_of_sampling() -> None:
    """Over all samples of three of five values, the mean squared error is the mean of the squared stated errors."""
    from itertools import combinations

    values = [0.1, 0.5, 0.55, 0.7, 0.9]
    samples = [[*each] for each in combinations(values, 3)]
    true = np.mean([(np.mean(each) - np.mean(values)) ** 2 for each in samples])
    stated = np.mean([over_clients("x", each, share=3 / 5)["x_error"] ** 2 for each in samples])
    assert stated == pytest.approx(true)


def test_a_sample_of_clients_is_evaluated_and_the_rows_state_its_error(tmp_path: Path) -> None:
    run = fedal.run(Config(**{**SETTINGS, "eval_clients": 3, "rounds": 2}), tmp_path / "run")
    rows = [json.loads(line) for line in (run.path / "clients.jsonl").read_text().splitlines()]
    ends = {(row["iteration"], row["final"]): set() for row in rows if row["phase"] == "after_global"}
    for row in rows:
        if row["phase"] == "after_global":
            ends[row["iteration"], row["final"]].add(row["client"])
    assert len(ends) == 3 and len({frozenset(each) for each in ends.values()}) == 1  # the same three in all rows
    assert len(ends[4, True]) == 3 and run.final["evaluated_clients"] == 3
    own = [row["test_accuracy"] for row in rows if row["final"]]
    assert run.final["test_accuracy_error"] == pytest.approx(np.std(own, ddof=1) * np.sqrt(0.5 / 3))
    sampled = {*ends[4, True]}
    assert {row["client"] for row in rows if row["phase"] == "after_local"} <= sampled


def test_how_many_are_evaluated_by_default() -> None:
    assert Config(clients=1000).evaluated_clients == 1000
    assert Config(clients=1000, participation=0.1).evaluated_clients == 100
    assert Config(clients=1000, participation=5).evaluated_clients == 20
    assert Config(clients=10, participation=5).evaluated_clients == 10
    assert Config(clients=10, eval_clients=50).evaluated_clients == 10


def test_the_best_models_of_clients_that_are_not_evaluated_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match=r"keep_best = true: judges every client. Set eval_clients = 30"):
        Config(clients=30, participation=0.5, own_validation=0.2, keep_best=True)
    assert Config(clients=30, participation=0.5, own_validation=0.2, keep_best=True, eval_clients=30).keep_best


def test_a_schedule_counts_the_steps_that_a_client_can_expect_to_take() -> None:
    assert steps_per_iteration(Config(method="fedal", clients=10, participation=0.3)) == pytest.approx(0.6)
