"""Replay: what a client keeps, the steps it takes on it, and the limits in which nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedal
from fedal.config import Config
from fedal.data.augment import Augmentation
from fedal.engine.loop import Federation
from fedal.errors import ConfigError, Stopped
from fedal.learners.torch_learner import TorchSettings
from fedal.losses import d_kl
from fedal.methods.client import ClientLogic
from fedal.records.checkpoint import load_newest, save_checkpoint
from fedal.seeding import philox_key, raw_bits
from fedal.simulate.assemble import assemble
from observers import StopAt
from splits import (
    BATCH,
    CLASSES,
    InOrder,
    build_federation,
    build_of_table_models,
    differing_clients,
    mlp,
    restore,
    run_rounds,
    same_bits,
    state_of,
    tiny_split,
)

METHODS = ("fedmd", "fedmd-lf", "fedal")
PUBLIC = 40  # samples of `tiny_split`
THREE = {"anna": mlp, "ben": mlp, "cleo": mlp}


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES, bias=False))


def trained(method: str = "fedmd", rounds: int = 2, tau: int = 2, **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=tau, **options), rounds)


def steps(federation: Federation) -> set[int]:
    return {logic.learner.state_dict()["step"] for logic in federation.clients.values()}


@pytest.mark.parametrize("method", METHODS)
def test_without_replay_nothing_is_kept_and_the_bits_are_those_of_the_method(method: str) -> None:
    plain, without, replaying = trained(method), trained(method, replay=0), trained(method, replay=1)
    assert differing_clients(plain, without) == [] and differing_clients(plain, replaying)
    assert not plain.clients["anna"].state_dict() and not hasattr(plain.clients["anna"], "_targets")
    assert plain.wire.state_dict() == replaying.wire.state_dict()  # not a byte more
    assert steps(plain) == {8} and steps(replaying) == {12}


@pytest.mark.parametrize("method", METHODS)
def test_without_distillation_there_is_nothing_to_repeat(method: str) -> None:
    plain, replaying = (trained(method, replay=replay, distillation=0.0) for replay in (0, 3))
    assert differing_clients(plain, replaying) == [] and not replaying.clients["anna"].state_dict()


def test_less_forgetting_without_weights_is_fedmd_with_replay_too() -> None:
    off = {"keep_local": 0.0, "keep_global": 0.0}
    expected = trained("fedmd", replay=2)
    assert differing_clients(trained("fedmd-lf", replay=2, **off), expected) == []
    assert differing_clients(trained("fedal", replay=2, adversarial=0.0, **off), expected) == []
    assert differing_clients(trained("fedal", replay=2, **off), expected)


def test_the_first_exchange_by_hand() -> None:
    """Two linear clients, plain gradient descent, one exchange: all its samples are known, and no others.

    So each of the two repetitions is a step on the batch of the exchange, in another order, with the other's outputs
    as they were at the exchange.
    """
    nets, lr, E = {"anna": linear, "ben": linear}, 0.1, 2.0
    settings = TorchSettings(optimizer="sgd", lr=lr, fused=False)
    start = build_federation("fedmd", nets=nets, tau=1, dtype=torch.float64, settings=settings)
    clients = start.clients
    w = {name: logic.learner.module[1].weight.detach().clone() for name, logic in clients.items()}  # type: ignore[attr-defined]
    x = clients["anna"].public.batch(0, 0).flatten(1)
    for name, logic in clients.items():  # local training
        private, y = logic.private.batch(0, 0)
        p = torch.softmax(private.flatten(1) @ w[name].T, -1)
        w[name] -= lr * (p - nn.functional.one_hot(y, CLASSES)).T @ private.flatten(1) / BATCH
    teacher = {"anna": x @ w["ben"].T, "ben": x @ w["anna"].T}
    for _ in range(1 + 2):
        for name in w:
            pull = (torch.softmax(x @ w[name].T / E, -1) - torch.softmax(teacher[name] / E, -1)) / (E * BATCH)
            w[name] -= lr * pull.T @ x
    options = {"tau": 1, "replay": 2, "temperature": E}
    found = run_rounds(build_federation("fedmd", nets=nets, dtype=torch.float64, settings=settings, **options), 1)
    for name, logic in found.clients.items():
        torch.testing.assert_close(logic.learner.module[1].weight.detach(), w[name], rtol=0, atol=1e-12)  # type: ignore[attr-defined]


def replies_to(client: str, federation: Federation, rounds: int) -> list[Any]:
    """What the server sends to a client, exchange by exchange."""
    seen: list[Any] = []
    down = federation.wire.down

    def watched(name: str, message: Any) -> Any:
        passed = down(name, message)
        if name == client:
            seen.append(passed)
        return passed

    federation.wire.down = watched  # type: ignore[method-assign]
    run_rounds(federation, rounds)
    return seen


@pytest.mark.parametrize("space", ["logits", "probabilities"])
@pytest.mark.parametrize("method", METHODS)
def test_the_newest_value_of_each_sample_is_kept(method: str, space: Any) -> None:
    federation = build_federation(method, tau=2, replay=1, aggregate="median", space=space)
    logic = federation.clients["anna"]
    expected, known = torch.zeros(PUBLIC, CLASSES), torch.zeros(PUBLIC, dtype=torch.bool)
    for exchange, reply in enumerate(replies_to("anna", federation, 4)):
        ids = torch.from_numpy(logic.public.ids(*divmod(exchange, 2)))
        expected[ids], known[ids] = reply.values, True
    kept = logic.state_dict()
    assert torch.equal(kept["targets"], expected) and torch.equal(kept["is_known"], known)
    assert known.any() and kept["targets"].shape == (PUBLIC, CLASSES)


def test_the_mean_is_kept_without_the_client_itself() -> None:
    sent: list[dict[str, Tensor]] = []
    federation = build_federation(
        "fedmd", tau=1, replay=1, observe=lambda up: sent.append({n: m.values for n, m in up.items()})
    )
    run_rounds(federation, 1)
    ids = federation.clients["anna"].public.ids(0, 0)
    others = torch.stack([sent[0][name] for name in ("ben", "cleo", "dora")]).mean(0)
    torch.testing.assert_close(federation.clients["anna"].state_dict()["targets"][ids], others)


def test_repeated_batches_come_from_a_counter_and_hold_known_samples_once() -> None:
    federation = trained("fedmd", rounds=2, tau=1, replay=2)
    logic: Any = federation.clients["anna"]
    known = {int(sample) for t in range(2) for sample in logic.public.ids(t, 0)}
    drawn = logic._drawn(7, BATCH).tolist()
    assert len(set(drawn)) == BATCH and set(drawn) <= known
    order = np.argsort(raw_bits(philox_key(0, "replay"), 7, PUBLIC), kind="stable").tolist()
    assert drawn == [sample for sample in order if sample in known][:BATCH] == logic._drawn(7, BATCH).tolist()
    assert drawn != logic._drawn(8, BATCH).tolist()
    other: Any = federation.clients["ben"]
    assert drawn == other._drawn(7, BATCH).tolist()


def test_a_repeated_batch_holds_the_samples_as_they_are() -> None:
    logic: Any = trained("fedmd", tau=1, replay=1).clients["anna"]
    drawn = logic._drawn(3, BATCH)
    assert torch.equal(logic.public.take(drawn), logic.public.everything()[drawn])


def test_the_anchor_holds_repetitions_also_at_tau_one() -> None:
    """Without replay the first step of a stage is the only one at tau = 1, and the anchor does nothing."""
    free = {"keep_local": 0.0, "keep_global": 0.0}
    assert differing_clients(trained("fedmd-lf", tau=1, keep_local=0.0), trained("fedmd-lf", tau=1, **free)) == []
    held, loose = (trained("fedmd-lf", tau=1, replay=2, **each) for each in ({"keep_local": 0.0}, free))
    assert differing_clients(held, loose)


def test_repetitions_have_no_adversarial_term(monkeypatch: pytest.MonkeyPatch) -> None:
    terms: list[set[str]] = []
    step = ClientLogic.step

    def noting(self: ClientLogic, *passes: Any, **named: Any) -> None:
        terms.append({name for name, gradient in named.items() if gradient is not None})
        step(self, *passes, **named)

    monkeypatch.setattr(ClientLogic, "step", noting)
    trained("fedal", rounds=1, tau=1, replay=1, nets={"anna": mlp, "ben": mlp})
    assert terms.count({"distillation", "adversarial", "keep_global"}) == 2
    assert terms.count({"distillation", "keep_global"}) == 2


def checkpointed(federation: Federation, folder: Path) -> Any:
    save_checkpoint(folder, 1, state_of(federation))
    found = load_newest(folder, warn=pytest.fail)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_federation_continues_bit_for_bit(method: str, tmp_path: Path) -> None:
    whole = trained(method, replay=2)
    state = checkpointed(whole, tmp_path)
    assert state["clients"]["anna"]["method"].keys() == {"targets", "is_known"}

    def resumed() -> Federation:
        return run_rounds(restore(build_federation(method, tau=2, replay=2), state), range(2, 4))

    run_rounds(whole, range(2, 4))
    assert differing_clients(whole, resumed()) == []
    assert same_bits(state_of(whole)["clients"], state_of(resumed())["clients"])
    for client in state["clients"].values():
        client["method"]["targets"] = torch.zeros_like(client["method"]["targets"])
    assert differing_clients(whole, resumed()) == list(whole.clients)


def test_an_absent_client_keeps_its_targets_and_repeats_them_when_it_returns() -> None:
    federation = build_federation("fedmd", tau=1, replay=1)
    federation.run_round(0)
    before = federation.clients["anna"].state_dict()
    federation.run_round(1, lambda client, exchange: client == "anna")
    assert same_bits(federation.clients["anna"].state_dict(), before)
    federation.run_round(2)
    anna, ben = (federation.clients[name].state_dict()["is_known"] for name in ("anna", "ben"))
    missed, first = (set(federation.clients["ben"].public.ids(t, 0).tolist()) for t in (1, 0))
    assert ben.sum() > anna.sum() and anna[[*first]].all() and not anna[[*missed - first]].all()


@pytest.mark.parametrize("rest", ["memory", "disk"])
def test_cohorts_have_the_same_bits_in_one_run_and_after_a_stop(rest: str, tmp_path: Path) -> None:
    config = Config(
        method="fedal", clients=4, models="mlp-small", iterations=8, tau=1, batch_size=8, participation=2,
        eval_every=4, checkpoint_every=1, rest=rest, options={"tau": 1, "replay": 2, "discriminator_rule": "balance"},
    )  # fmt: skip
    whole = fedal.run(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "parts", callbacks=[StopAt(5)])
    parts = fedal.resume(tmp_path / "parts")
    for name in config.client_names:
        files = [run.path / "models" / f"{name}.safetensors" for run in (whole, parts)]
        assert files[0].read_bytes() == files[1].read_bytes()


def of_stack(stacked: bool | str, method: str = "fedal") -> Any:
    config = Config(
        method=method, clients=4, models="mlp-small", batch_size=16, stacked=stacked, options={"tau": 2, "replay": 2}
    )
    return assemble(config, tiny_split(config.client_names), InOrder()).federation


@pytest.mark.parametrize("method", METHODS)
def test_a_stack_has_the_bits_of_its_members_and_each_keeps_its_own(method: str) -> None:
    stacked, single = (run_rounds(of_stack(how, method), 2) for how in ("auto", False))
    assert len(stacked.players) == 1 and len(single.players) == 4
    assert same_bits(state_of(stacked)["clients"], state_of(single)["clients"])
    targets = [state["method"]["targets"] for state in state_of(stacked)["clients"].values()]
    assert all(kept.shape == (PUBLIC, CLASSES) for kept in targets) and not torch.equal(*targets[:2])
    again = run_rounds(restore(of_stack("auto", method), state_of(single)), range(2, 3))  # a stack from single states
    assert same_bits(state_of(again)["clients"], state_of(run_rounds(single, range(2, 3)))["clients"])


def test_only_unchanged_samples_of_augmented_batches_are_kept() -> None:
    config = Config(
        method="fedmd", clients=3, models="mlp-small", batch_size=8, stacked=False, public_augment="mixup",
        public_clean=0.25, public_augment_start=1, options={"tau": 1, "replay": 1},
    )  # fmt: skip
    federation = assemble(config, tiny_split(config.client_names), InOrder()).federation
    player: Any = federation.players[0]
    federation.run_round(0)  # not changed yet
    assert set(player.logic.state_dict()["is_known"].nonzero()[:, 0].tolist()) == set(player.logic.public.ids(0, 0))
    federation.run_round(1)
    expected = {*player.logic.public.ids(0, 0), *player.logic.public.ids(1, 0)[:2]}
    assert set(player.logic.state_dict()["is_known"].nonzero()[:, 0].tolist()) == expected
    late = Augmentation(("mixup",), 0, clean=0.25, start=1)
    assert [late.unchanged(8, step) for step in (0, 1)] == [8, 2]


def test_batches_without_an_unchanged_sample_are_refused_by_name() -> None:
    changed: dict[str, Any] = {"method": "fedal", "public_augment": "mixup", "batch_size": 8, "public_clean": 0.05}
    Config(**changed)
    with pytest.raises(ConfigError, match=r"replay = 2: clients keep .* public_clean = 0.05 leaves none of 8"):
        Config(**changed, options={"replay": 2})
    Config(**{**changed, "public_clean": 0.5}, options={"replay": 2})


def test_a_server_that_distils_leaves_nothing_to_repeat() -> None:
    options = {"tau": 1, "transfer": "server", "replay": 1}
    with pytest.raises(ConfigError, match="replay = 1: with transfer = server"):
        build_of_table_models("feddf", options=options)
    taught = run_rounds(build_of_table_models("feddf", options={**options, "transfer": "clients"}), 2)
    assert steps(taught) == {6}


def test_fewer_public_samples_than_a_batch_are_all_repeated() -> None:
    config = Config(
        method="fedmd", clients=3, models="mlp-small", batch_size=64, stacked=False, options={"tau": 1, "replay": 1}
    )
    federation = assemble(config, tiny_split(config.client_names), InOrder()).federation
    logic: Any = federation.players[0]
    run_rounds(federation, 1)
    assert sorted(logic.logic._drawn(0, 64).tolist()) == list(range(PUBLIC))


def test_repetition_closes_the_gap_to_what_was_taught() -> None:
    """The more often a client repeats, the nearer its outputs on public samples are to its targets."""

    targets = {n: logic.state_dict() for n, logic in trained(rounds=12, tau=1, nets=THREE, replay=1).clients.items()}

    def distance(replay: int) -> float:
        clients = trained(rounds=12, tau=1, nets=THREE, replay=replay).clients
        total = 0.0
        for n, logic in clients.items():
            kept = logic.state_dict() or targets[n]
            f = logic.learner.predict(logic.public.everything())
            total += float(d_kl(kept["targets"], f, 1.0)[kept["is_known"]].norm())
        return total

    assert distance(4) < distance(1) < distance(0)


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_and_the_record_counts_its_steps(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": method, "clients": 5, "models": "mlp-small", "iterations": 60, "tau": 1}
    settings |= {"eval_every": 60, "partition": "dirichlet-client-k", "alpha": 1.0, "lr": 1e-3}
    replaying = fedal.run(Config(**settings, options={"tau": 1, "replay": 2}), tmp_path / "replay")
    plain = fedal.run(Config(**settings, options={"tau": 1}), tmp_path / "plain")
    first = replaying.metrics[0]["test_accuracy"]
    assert replaying.final["test_accuracy"] > max(first + 0.2, plain.final["test_accuracy"])
    assert replaying.final["up_bytes"] == plain.final["up_bytes"]
    method_object, options = replaying.config.method_object(), replaying.config.options
    assert method_object.steps(options, 60) == 60 * (1 + 3)
