"""HFD: mean inputs once, then outputs on them; labels that no other client has never count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedal
from fedal.engine.loop import Federation
from fedal.learners.torch_learner import TorchSettings
from fedal.messages import ClassInputs, Leak, MeanInputOutputs
from fedal.methods.statistics import hfd
from splits import (
    CLASSES,
    SHAPE,
    build_federation,
    build_net,
    conv_batch_norm,
    differing_clients,
    fingerprint,
    mlp,
    run_rounds,
    split_of_classes,
)

MLPS = {"anna": mlp, "ben": mlp, "cleo": mlp}
SKEWED = {"anna": (0, 1), "ben": (1,), "cleo": (0, 1)}  # no client has class 2
LR, INPUTS = 0.01, 16


def build(**settings: Any) -> Federation:
    return build_federation("hfd", nets=settings.pop("nets", MLPS), **settings)


def mean_inputs(federation: Federation, client: str) -> dict[int, Tensor]:
    x, y = (torch.cat(parts) for parts in zip(*federation.clients[client].private.everything(), strict=True))
    return {label: x[y == label].mean(0) for label in y.unique().tolist()}


# the exchange of mean inputs


def test_with_two_clients_each_receives_the_mean_inputs_of_the_other() -> None:
    sent: list[dict[str, Any]] = []
    federation = run_rounds(
        build(nets={"anna": mlp, "ben": conv_batch_norm}, observe=lambda up: sent.append(dict(up))), 1
    )  # fmt: skip
    for one, other in [("anna", "ben"), ("ben", "anna")]:
        received = federation.clients[one]._inputs["of_others"]
        assert torch.equal(received.flatten(1), sent[0][other].values)
        for label, expected in mean_inputs(federation, other).items():
            torch.testing.assert_close(received[label], expected, rtol=0, atol=1e-6)


def test_mean_inputs_are_over_the_clients_that_have_the_class() -> None:
    federation = run_rounds(build(split=split_of_classes({"anna": (0, 1), "ben": (1, 2), "cleo": (1,)})), 1)
    own = {n: mean_inputs(federation, n) for n in MLPS}
    anna = federation.clients["anna"]._inputs
    assert anna["others"].tolist() == [0, 2, 1] and anna["all"].tolist() == [1, 3, 1]
    assert not anna["of_others"][0].any()
    torch.testing.assert_close(anna["of_others"][1], (own["ben"][1] + own["cleo"][1]) / 2, rtol=0, atol=1e-6)
    torch.testing.assert_close(anna["of_others"][2], own["ben"][2], rtol=0, atol=1e-6)
    torch.testing.assert_close(anna["of_all"][0], own["anna"][0], rtol=0, atol=1e-6)
    of_all = torch.stack([own[n][1] for n in MLPS]).mean(0)
    for n in MLPS:
        torch.testing.assert_close(federation.clients[n]._inputs["of_all"][1], of_all, rtol=0, atol=1e-6)


def test_inputs_cross_once_and_outputs_in_every_round() -> None:
    kinds: list[set[type]] = []
    federation = build(observe=lambda up: kinds.append({type(message) for message in up.values()}))
    once, per_round = 4 * CLASSES * INPUTS + 4 * CLASSES, 4 * CLASSES * CLASSES
    for t in range(3):
        federation.run_round(t)
        expected = {once + (t + 1) * per_round}
        assert set(federation.wire.up_bytes.values()) == set(federation.wire.down_bytes.values()) == expected
    assert kinds == [{ClassInputs}, *[{MeanInputOutputs}] * 3]


def test_a_client_that_missed_the_first_round_joins_later() -> None:
    kinds: list[dict[str, str]] = []
    federation = build(observe=lambda up: kinds.append({n: type(up[n]).__name__ for n in up}))
    federation.run_round(0, is_absent=lambda client, exchange: client == "ben")
    run_rounds(federation, range(1, 3))
    assert kinds[2] == {"anna": "MeanInputOutputs", "ben": "ClassInputs", "cleo": "MeanInputOutputs"}
    assert set(kinds[3].values()) == {"MeanInputOutputs"}
    assert federation.clients["ben"]._inputs["others"].tolist() == [2, 2, 2]
    assert federation.clients["anna"]._inputs["others"].tolist() == [1, 1, 1]  # as at the time of its request


def test_outputs_on_a_late_clients_class_exclude_clients_without_its_mean_input() -> None:
    federation = build(split=split_of_classes({"anna": (0, 1), "ben": (2,), "cleo": (0, 1)}))
    federation.run_round(0, is_absent=lambda client, exchange: client == "ben")
    received: dict[str, Tensor] = {}
    original = federation.wire.down
    federation.wire.down = lambda n, message: received.update({n: message.values}) or original(n, message)  # type: ignore[method-assign]
    run_rounds(federation, range(1, 3))
    assert received["ben"].sum(-1).tolist() == pytest.approx([1, 1, 0])
    assert received["anna"].sum(-1).tolist() == pytest.approx([1, 1, 1])  # only from ben in the last row


# the loss


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("classes", [SKEWED, dict.fromkeys(MLPS, (0, 1, 2))])
def test_a_round_equals_autograd_of_the_written_loss(joint: bool, classes: dict[str, tuple[int, ...]]) -> None:
    tau, steps, beta, rounds = 2, 3, 0.3, 3
    federation = build(
        dtype=torch.float64,
        settings=TorchSettings(lr=LR, fused=False),
        split=split_of_classes(classes),
        tau=tau,
        distillation_steps=steps,
        distillation=beta,
        joint=joint,
    )
    run_rounds(federation, rounds)
    models = {n: build_net(n, mlp).double() for n in MLPS}
    optimizers = {n: torch.optim.Adam(model.parameters(), lr=LR) for n, model in models.items()}
    own = {n: mean_inputs(federation, n) for n in MLPS}

    def mean_over(clients: list[str]) -> dict[int, Tensor]:
        found = {label: [own[m][label] for m in clients if label in own[m]] for label in range(CLASSES)}
        return {label: torch.stack(rows).mean(0) for label, rows in found.items() if rows}

    of_all, others = mean_over(list(MLPS)), {n: mean_over([m for m in MLPS if m != n]) for n in MLPS}
    teachers: dict[str, dict[int, Tensor]] = {}

    def shared_loss(n: str) -> Tensor:
        labels = torch.tensor(list(others[n]))
        f = models[n](torch.stack(list(others[n].values())))
        teacher = torch.stack([teachers[n][int(label)] for label in labels])
        return (1 - beta) * F.cross_entropy(f, labels) + beta * F.cross_entropy(f, teacher)

    def descend(n: str, loss: Tensor) -> None:
        optimizers[n].zero_grad()
        loss.backward()
        optimizers[n].step()

    for t in range(rounds):
        for n, model in models.items():
            for i in range(tau):
                x, y = federation.clients[n].private.batch(t, i)
                loss = F.cross_entropy(model(x), y)
                descend(n, loss + shared_loss(n) if joint and teachers else loss)
        sent = {
            n: {label: torch.softmax(model(x[None])[0], -1).detach() for label, x in of_all.items()}
            for n, model in models.items()
        }
        for n in MLPS:
            teachers[n] = {k: torch.stack([sent[m][k] for m in MLPS if m != n]).mean(0) for k in of_all}
        for n in MLPS:
            for _ in range(0 if joint else steps):
                descend(n, shared_loss(n))
    for n, model in models.items():
        for name, value in federation.clients[n].learner.weights().items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-12)


def test_mean_inputs_do_not_change_the_running_averages_of_batch_norm() -> None:
    nets = {"anna": conv_batch_norm, "ben": conv_batch_norm}
    for joint in (False, True):
        federation = run_rounds(build(nets=nets, tau=2, joint=joint), 3)
        assert all(logic.learner.module[1].num_batches_tracked == 3 * 2 for logic in federation.clients.values())
    moved = run_rounds(build(nets=nets, tau=2, mean_input_mode="train"), 3)
    assert all(logic.learner.module[1].num_batches_tracked > 3 * 2 for logic in moved.clients.values())


@pytest.mark.parametrize(("net", "notices"), [(mlp, False), (conv_batch_norm, True)])
def test_few_mean_inputs_share_their_batch_statistics_with_private_samples(
    net: Any, notices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blurred images make poor batch statistics; without BatchNorm the extra samples have no effect."""
    weights = []
    for few in (0, 8):
        monkeypatch.setattr(hfd, "MIN_BATCH", few)
        clients = run_rounds(build(nets={"anna": net, "ben": net}, dtype=torch.float64), 2).clients.values()
        weights.append(torch.cat([part.flatten() for logic in clients for part in logic.learner.weights().values()]))
    assert torch.allclose(*weights, rtol=0, atol=1e-12) != notices


def test_without_other_clients_it_is_local_only_training() -> None:
    settings = dict(nets={"anna": mlp, "ben": mlp}, tau=2)
    for joint in (False, True):
        federation = build(**settings, joint=joint)
        for t in range(3):
            federation.run_round(t, is_absent=lambda client, exchange: client == "ben")
        alone = run_rounds(build_federation("local", **settings), 3)
        assert "ben" in differing_clients(federation, alone) and "anna" not in differing_clients(federation, alone)


def test_a_joint_run_resumes_with_its_teacher() -> None:
    one, other = build(joint=True), build(joint=True)
    run_rounds(one, 2)
    for n, client in other.clients.items():
        client.learner.load_state_dict(one.clients[n].learner.state_dict())
        client.load_state_dict(one.clients[n].state_dict())
    other.server.load_state_dict(one.server.state_dict())
    assert differing_clients(run_rounds(one, range(2, 4)), run_rounds(other, range(2, 4))) == []
    assert fingerprint(one.clients["anna"].state_dict()) == fingerprint(other.clients["anna"].state_dict())


def test_what_it_reveals_and_needs() -> None:
    assert hfd.METHOD.reveals == Leak.CLASS_INPUTS | Leak.CLASS_OUTPUTS | Leak.LABEL_COUNTS
    assert hfd.METHOD.black_box and not hfd.METHOD.needs
    assert SHAPE == (1, 4, 4) and INPUTS == 16


@pytest.mark.parametrize("joint", [False, True])
def test_on_digits_it_beats_local_only_training_by_far(joint: bool, tmp_path: Path) -> None:
    settings = dict(clients=4, iterations=60, models="same", eval_every=60)
    alone = fedal.run(fedal.Config(method="local", **settings), tmp_path / "local")
    run = fedal.run(fedal.Config(method="hfd", **settings, options={"joint": joint}), tmp_path / "hfd")
    assert run.final["up_bytes"] == run.final["down_bytes"] == 4 * (4 * 10 * 64 + 40 + 12 * 400)
    assert run.final["test_accuracy"] > alone.final["test_accuracy"] + 0.1
