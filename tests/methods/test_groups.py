"""FedAvg, FedDF and FedDF-AL: averaging within an architecture, and their limits with groups of one."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import fedal
from fedal.aggregate import average_weights
from fedal.errors import NotApplicableError
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import kl
from fedal.messages import Weights
from fedal.methods.parameters import feddf
from fedal.methods.server import ServerSetup
from plain_rounds import LR, TAU, TRIO, naive_fedal, plain_rounds, towards_the_others
from splits import BATCH, CLASSES, NETS, build_federation, build_net, differing_clients, mlp, run_rounds, same_bits

ALL_DIFFERENT = {client: NETS[client] for client in ("anna", "ben", "cleo")}
ALL_EQUAL = {"anna": mlp, "ben": mlp, "cleo": mlp}


def test_an_average_weights_members_and_takes_counters_from_the_largest() -> None:
    a = {"w": torch.tensor([1.0, 2.0]), "batches": torch.tensor(3)}
    b = {"w": torch.tensor([4.0, 8.0]), "batches": torch.tensor(7)}
    average = average_weights([a, b], [1, 2])
    assert torch.allclose(average["w"], torch.tensor([3.0, 6.0]))
    assert average["batches"] == 7
    assert same_bits(average_weights([a], [5]), a)


@pytest.mark.parametrize("tau", [1, 3])
def test_feddf_al_with_groups_of_one_is_fedal_bit_for_bit(tau: int) -> None:
    alone = run_rounds(build_federation("feddf-al", nets=ALL_DIFFERENT, tau=tau), 3)
    assert differing_clients(alone, run_rounds(build_federation("fedal", nets=ALL_DIFFERENT, tau=tau), 3)) == []


@pytest.mark.parametrize("tau", [1, 3])
def test_feddf_with_groups_of_one_is_fedmd_at_the_same_tau_bit_for_bit(tau: int) -> None:
    alone = run_rounds(build_federation("feddf", nets=ALL_DIFFERENT, tau=tau), 3)
    assert differing_clients(alone, run_rounds(build_federation("fedmd", nets=ALL_DIFFERENT, tau=tau), 3)) == []


def test_feddf_al_without_adversary_and_regularisers_is_feddf() -> None:
    plain = {"adversarial": 0.0, "keep_local": 0.0, "keep_global": 0.0}
    assert (
        differing_clients(
            run_rounds(build_federation("feddf-al", **plain), 2), run_rounds(build_federation("feddf"), 2)
        )
        == []
    )


@pytest.mark.parametrize("method", ["feddf", "feddf-al"])
def test_a_round_equals_autograd_of_the_losses_and_an_average_of_the_group(method: str) -> None:
    federation = build_federation(
        method, nets=TRIO, dtype=torch.float64, settings=TorchSettings(lr=LR), tau=TAU, temperature=1.0
    )
    anna, cleo = (federation.clients[n].learner for n in ("anna", "cleo"))
    cleo.load_weights(anna.weights())  # the common start of their group
    if method == "feddf":
        models = plain_rounds(federation, 1, towards_the_others)
    else:
        models = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
        E_d = federation.server.hp.discriminator_temperature
        naive_fedal(federation, models, tau=TAU, rounds=1, E=1.0, E_d=E_d, lr=LR)
    run_rounds(federation, 1)
    sizes = {n: len(logic.private) for n, logic in federation.clients.items()}
    share = sizes["anna"] / (sizes["anna"] + sizes["cleo"])
    parts = zip(models["anna"].state_dict().items(), models["cleo"].state_dict().values(), strict=True)
    average = {name: share * one + (1 - share) * other for (name, one), other in parts}
    for n, expected in {"anna": average, "cleo": average, "ben": models["ben"].state_dict()}.items():
        for name, value in expected.items():
            torch.testing.assert_close(federation.clients[n].learner.weights()[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["fedavg", "feddf", "feddf-al"])
def test_members_of_a_group_end_every_round_with_the_same_weights(method: str) -> None:
    federation = run_rounds(build_federation(method, nets=ALL_EQUAL), 2)
    first, *others = [logic.learner.weights() for logic in federation.clients.values()]  # type: ignore[attr-defined]
    assert all(same_bits(first, other) for other in others)


def test_averaging_changes_only_the_members() -> None:
    with_groups, without = run_rounds(build_federation("feddf"), 2), run_rounds(build_federation("fedmd"), 2)
    assert {"ben", "dora"} <= set(differing_clients(with_groups, without))
    weights = {client: logic.learner.state_dict()["model"] for client, logic in with_groups.clients.items()}
    assert same_bits(weights["ben"], weights["dora"])
    assert weights["anna"].keys() != weights["ben"].keys()


def test_fedavg_equals_a_plain_loop_of_local_steps_and_weighted_means() -> None:
    federation = build_federation("fedavg", nets=ALL_EQUAL, tau=2, dtype=torch.float64)
    local = build_federation("local", nets=ALL_EQUAL, tau=2, dtype=torch.float64)
    start = next(iter(local.clients.values())).learner.weights()  # type: ignore[attr-defined]
    for logic in local.clients.values():
        logic.learner.load_weights(start)  # type: ignore[attr-defined]
    for t in range(3):
        local.run_round(t)
        sizes = [len(logic.private) for logic in local.clients.values()]
        members = [logic.learner.weights() for logic in local.clients.values()]  # type: ignore[attr-defined]
        mean = {name: sum(m[name] * n for m, n in zip(members, sizes, strict=True)) / sum(sizes) for name in start}
        for logic in local.clients.values():
            logic.learner.load_weights(mean)  # type: ignore[attr-defined]
            logic.learner.reset_optimizer()  # type: ignore[attr-defined]
    run_rounds(federation, 3)
    for name, value in federation.clients["anna"].learner.weights().items():  # type: ignore[attr-defined]
        assert torch.allclose(value, mean[name], rtol=0, atol=1e-12)


def test_fedavg_counts_every_weight_that_crosses() -> None:
    federation = run_rounds(build_federation("fedavg", nets=ALL_EQUAL), 3)
    weights = sum(math.prod(p.shape) for p in mlp().parameters())
    assert (
        federation.wire.up_bytes["anna"] == federation.wire.down_bytes["anna"] == (1 + 3) * 4 * weights
    )  # + the start


def test_feddf_counts_outputs_and_weights() -> None:
    federation = run_rounds(build_federation("feddf", nets=ALL_EQUAL, tau=2), 3)
    weights = sum(math.prod(p.shape) for p in mlp().parameters())
    assert federation.wire.up_bytes["ben"] == 4 * (4 * weights) + 3 * 2 * 4 * BATCH * CLASSES


def test_a_member_that_is_absent_is_not_averaged() -> None:
    federation = build_federation("fedavg", nets=ALL_EQUAL)
    federation.run_round(0)
    before = federation.clients["cleo"].learner.weights()  # type: ignore[attr-defined]
    present = federation.run_round(1, is_absent=lambda client, exchange: client == "cleo")
    assert present == ["anna", "ben"]
    assert same_bits(federation.clients["cleo"].learner.weights(), before)  # type: ignore[attr-defined]


def test_parameter_sharing_is_not_black_box_and_fedavg_refuses_different_architectures(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name in ("fedavg", "feddf", "feddf-al"):
        assert not fedal.methods.get(name).black_box
    with pytest.raises(NotApplicableError, match="one architecture"):
        fedal.run(fedal.Config(method="fedavg", iterations=5), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_feddf_server_distils_the_ensemble_of_all_uploads_into_an_average() -> None:
    federation = build_federation("fedmd", nets=ALL_EQUAL)
    public = federation.server.public
    assert public is not None

    def teacher(client: str, shape: object = None) -> TorchLearner:
        return TorchLearner(build_net(client, mlp), TorchSettings(lr=0.01))

    setup = ServerSetup(
        roster=tuple(ALL_EQUAL),
        n_classes=CLASSES,
        options=feddf.FedDFOptions(transfer="server", server_steps=30),
        seed=0,
        dtype=torch.float32,
        public=public,
        make_learner=teacher,
        architectures=dict.fromkeys(ALL_EQUAL, "mlp"),
    )
    server, clients = feddf.FedDFServer(setup), list(ALL_EQUAL)
    up = {client: Weights(teacher(client).weights(), 10) for client in clients}  # different weights
    averages = server.average_of_each(clients, up)
    distilled = server._distilled(0, clients, up, averages)

    def distance(message: Weights) -> float:
        student = teacher("any")
        student.load_weights(message.values)
        x = public.batch_at(0)
        ensemble = torch.stack([server._answers(n, up[n], [x])[0] for n in clients]).mean(0)
        return float(kl(ensemble, student.predict(x)).value)

    assert distance(distilled["anna"]) < 0.5 * distance(averages["anna"])  # type: ignore[arg-type]
    assert same_bits(distilled["anna"].values, distilled["cleo"].values)  # type: ignore[attr-defined]


def test_feddf_at_the_server_refuses_models_it_cannot_rebuild() -> None:
    with pytest.raises(NotApplicableError, match="rebuild"):
        build_federation("feddf", nets=ALL_EQUAL, transfer="server")
