"""FD: tables of mean outputs per class; rows that no other client has never count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedal
from fedal.learners.torch_learner import TorchSettings
from fedal.messages import ClassOutputs, Leak
from fedal.methods.server import ServerSetup
from fedal.methods.statistics import fd
from splits import (
    BATCH,
    CLASSES,
    NETS,
    build_federation,
    build_net,
    differing_clients,
    fingerprint,
    mlp,
    run_rounds,
    split_of_classes,
)

MLPS = {"anna": mlp, "ben": mlp, "cleo": mlp}
SKEWED = {"anna": (0, 1), "ben": (1, 2), "cleo": (1,)}  # classes 0 and 2 have one owner each
LR = 0.01


# the server


def server(**options: Any) -> fd.FDServer:
    return fd.FDServer(ServerSetup(("anna", "ben", "cleo"), 2, fd.FDOptions(**options), 0, torch.float32))


def uploaded(counts: list[int], rows: list[list[float]]) -> ClassOutputs:
    return ClassOutputs(torch.tensor(rows), torch.tensor(counts, dtype=torch.int32))


def answer(half: fd.FDServer, up: dict[str, ClassOutputs]) -> dict[str, ClassOutputs]:
    round_ = half.round(0, ["anna", "ben", "cleo"])
    next(round_)
    with pytest.raises(StopIteration) as stop:
        round_.send(up)
    replies: dict[str, ClassOutputs] = stop.value.value
    return replies


UP = {
    "cleo": uploaded([1, 0], [[0.5, 0.5], [0.0, 0.0]]),
    "anna": uploaded([3, 2], [[1.0, 0.0], [0.25, 0.75]]),
    "ben": uploaded([1, 0], [[0.0, 1.0], [0.0, 0.0]]),
}


def test_a_client_receives_the_mean_over_the_others_that_have_the_class() -> None:
    down = answer(server(), UP)
    assert down["anna"].values.tolist() == [[0.25, 0.75], [0.0, 0.0]] and down["anna"].counts.tolist() == [2, 0]
    assert down["ben"].values.tolist() == [[0.75, 0.25], [0.25, 0.75]] and down["ben"].counts.tolist() == [2, 1]
    assert answer(server(average="samples"), UP)["cleo"].values.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_the_order_of_arrival_does_not_matter() -> None:
    first, second = answer(server(), UP), answer(server(), dict(reversed(UP.items())))
    assert all(fingerprint(first[n].tensors()) == fingerprint(second[n].tensors()) for n in UP)


# the client


def test_a_round_equals_autograd_of_the_written_loss() -> None:
    tau, gamma, rounds = 2, 1.5, 4
    federation = build_federation(
        "fd",
        nets=MLPS,
        dtype=torch.float64,
        settings=TorchSettings(lr=LR, fused=False),
        split=split_of_classes(SKEWED),
        tau=tau,
        distillation=gamma,
        table_steps=3,
    )
    run_rounds(federation, rounds)
    models = {n: build_net(n, mlp).double() for n in MLPS}
    optimizers = {n: torch.optim.Adam(model.parameters(), lr=LR) for n, model in models.items()}
    teachers: dict[str, dict[int, Tensor]] = {n: {} for n in MLPS}
    seen: dict[str, list[tuple[int, int, Tensor]]] = {n: [] for n in MLPS}
    for t in range(rounds):
        for n, model in models.items():
            for i in range(tau):
                x, y = federation.clients[n].private.batch(t, i)
                f = model(x)
                pulls = [
                    -(teachers[n][int(label)] * torch.log_softmax(row, -1)).sum()
                    for row, label in zip(f, y, strict=True)
                    if int(label) in teachers[n]
                ]
                loss = F.cross_entropy(f, y) + gamma * sum(pulls) / len(y)
                optimizers[n].zero_grad()
                loss.backward()
                optimizers[n].step()
                probs = torch.softmax(f.detach(), -1)
                seen[n] += [(t, int(label), row) for row, label in zip(probs, y, strict=True)]
        tables = {
            n: {
                label: torch.stack(rows).mean(0)
                for label in range(CLASSES)
                if (rows := [row for when, of, row in seen[n] if of == label and when > t - 2])  # 3 steps: 2 rounds
            }
            for n in MLPS
        }
        for n in MLPS:
            others = {label: [tables[m][label] for m in MLPS if m != n and label in tables[m]] for label in range(3)}
            teachers[n] = {label: torch.stack(rows).mean(0) for label, rows in others.items() if rows}
    for n, model in models.items():
        for name, value in federation.clients[n].learner.weights().items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-12)


def test_without_its_term_it_is_local_only_training() -> None:
    alone = run_rounds(build_federation("local"), 3)
    assert differing_clients(run_rounds(build_federation("fd", distillation=0.0), 3), alone) == []
    assert differing_clients(run_rounds(build_federation("fd"), 3), alone) == list(NETS)


def test_rows_that_no_other_client_has_never_change_anything() -> None:
    """The content of such a row does not matter: its count of zero decides."""
    clean, dirty = (build_federation("fd", nets=MLPS, split=split_of_classes(SKEWED)) for _ in range(2))
    for t in range(3):
        clean.run_round(t)
        dirty.run_round(t)
        for client in dirty.clients.values():
            client._teacher[client._owners == 0] = 7.0
    assert differing_clients(clean, dirty) == []
    assert [client._owners.tolist() for client in clean.clients.values()] == [[0, 2, 1], [1, 2, 0], [1, 2, 1]]


def test_the_rows_of_a_table_are_probabilities_or_zeros() -> None:
    sent: list[dict[str, Any]] = []
    split = split_of_classes(SKEWED)
    run_rounds(build_federation("fd", nets=MLPS, split=split, tau=4, observe=lambda up: sent.append(dict(up))), 3)
    for up in sent:
        for n, classes in SKEWED.items():
            shown = up[n].counts > 0
            assert shown.nonzero().flatten().tolist() == list(classes)
            torch.testing.assert_close(up[n].values.sum(-1), shown.float(), rtol=0, atol=1e-6)


def test_a_table_covers_the_last_steps() -> None:
    sent: list[dict[str, Any]] = []
    options = dict(tau=2, table_steps=5, observe=lambda up: sent.append(dict(up)))
    run_rounds(build_federation("fd", **options), 5)
    assert [int(up["anna"].counts.sum()) for up in sent] == [16, 32, 48, 48, 48]  # at most 3 rounds of 2 batches of 8
    assert 2 * 3 * BATCH == 48


def test_exchanges_may_be_rare() -> None:
    exchanges: list[object] = []
    federation = build_federation("fd", exchange_every=3, observe=exchanges.append)
    run_rounds(federation, 2)
    assert not exchanges and not federation.wire.up_bytes
    assert differing_clients(federation, run_rounds(build_federation("local"), 2)) == []
    run_rounds(federation, range(2, 7))
    assert len(exchanges) == 2


def test_two_local_stages_draw_the_batches_of_twice_as_many_steps() -> None:
    doubled = run_rounds(build_federation("fd", tau=2, local_stages=2, distillation=0.0), 3)
    assert differing_clients(doubled, run_rounds(build_federation("local", tau=4), 3)) == []
    assert fd.METHOD.local_steps(fd.FDOptions(tau=2, local_stages=2)) == 4


def test_a_client_that_misses_an_exchange_keeps_its_teacher_and_returns() -> None:
    federation = run_rounds(build_federation("fd"), 1)
    before = fingerprint(federation.clients["ben"].state_dict())
    federation.run_round(1, is_absent=lambda client, exchange: client == "ben")
    assert fingerprint(federation.clients["ben"].state_dict()) == before
    run_rounds(federation, range(2, 3))
    assert fingerprint(federation.clients["ben"].state_dict()) != before


def test_a_single_client_in_a_round_has_no_teacher() -> None:
    federation = run_rounds(build_federation("fd", nets={"anna": mlp, "ben": mlp}), 1)
    federation.run_round(1, is_absent=lambda client, exchange: client == "ben")
    assert not federation.clients["anna"]._owners.any()
    run_rounds(federation, range(2, 3))


def test_what_it_reveals_and_needs() -> None:
    assert fd.METHOD.reveals == Leak.CLASS_OUTPUTS | Leak.LABEL_COUNTS
    assert fd.METHOD.black_box and not fd.METHOD.needs


def test_on_digits_it_beats_local_only_training_for_440_bytes_a_round(tmp_path: Path) -> None:
    settings = dict(clients=4, iterations=60, models="same", eval_every=60)
    alone = fedal.run(fedal.Config(method="local", **settings), tmp_path / "local")
    run = fedal.run(fedal.Config(method="fd", **settings), tmp_path / "fd")
    assert run.final["up_bytes"] == run.final["down_bytes"] == 4 * 12 * 440
    assert run.final["test_accuracy"] > alone.final["test_accuracy"]
