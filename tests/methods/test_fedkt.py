"""FedKT: votes of a hand case, roles in turn, one exchange in a run, absences, resumed runs, a plain reference."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedal.aggregate import majority
from fedal.engine.loop import Federation
from fedal.errors import NotApplicableError, WireError
from fedal.learners.torch_learner import TorchSettings
from fedal.messages import Votes
from fedal.methods.outputs.fedkt import METHOD, FedKTOptions
from fedal.wire import Wire
from plain_rounds import LR, TRIO, descend
from splits import build_federation, differing_clients, fingerprint, restore, run_rounds, state_of

PUBLIC = 40


def build(**options: Any) -> Federation:
    return build_federation("fedkt", tau=2, **{"teacher_iterations": 4, "student_iterations": 4, **options})


# votes


def test_votes_of_a_hand_case() -> None:
    """Three clients with two students each, (0, 0), (0, 1), (1, 1): counts 2 and 2, or 3 and 3; ties go to class 0."""
    votes = torch.tensor([[[0], [0]], [[0], [1]], [[1], [1]]], dtype=torch.uint8)
    assert majority(votes, 3, consistent=True).tolist() == majority(votes, 3).tolist() == [0]
    decided = torch.tensor([[[2], [2]], [[1], [0]], [[1], [2]]], dtype=torch.uint8)
    assert majority(decided, 3, consistent=True).tolist() == [2]
    assert majority(torch.tensor([[[2], [2]], [[1], [0]], [[1], [1]], [[1], [0]]]), 3).tolist() == [1]


def test_where_no_client_is_consistent_every_vote_counts() -> None:
    votes = torch.tensor([[[2], [1]], [[1], [2]], [[0], [2]]])
    assert majority(votes, 3, consistent=True).tolist() == [2]


def test_single_votes_are_the_argmax_of_the_mean_of_one_hot_labels() -> None:
    votes = torch.randint(0, 3, (5, 1, 30), generator=torch.Generator().manual_seed(0))
    expected = F.one_hot(votes[:, 0], 3).double().mean(0).argmax(-1)
    assert torch.equal(majority(votes, 3), expected) and torch.equal(majority(votes, 3, consistent=True), expected)


# roles


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["teacher 0", "teacher 0", "final 0", "final 0"]),
        ({"partitions": 2}, ["teacher 0", "teacher 1", "final 0"]),
        ({"teachers": 2}, ["teacher 0", "teacher 1", "student 0", "student 0", "final 0"]),
        (
            {"partitions": 2, "teachers": 2},
            ["teacher 0", "teacher 1", "teacher 2", "teacher 3", "student 0", "student 1", "final 0"],
        ),
    ],
)
def test_one_learner_takes_all_roles_in_turn(options: dict[str, int], expected: list[str]) -> None:
    made = FedKTOptions(tau=2, teacher_iterations=4, student_iterations=4, **options)
    assert [" ".join(map(str, made.role(t)[:2])) for t in range(len(expected))] == expected


def test_parts_are_disjoint_and_cover_all_samples() -> None:
    private = build().clients["anna"].private
    for name in ("partition 0", "partition 1"):
        parts = private.parts(3, name)
        together = np.concatenate([part._indices for part in parts])
        assert sorted(together.tolist()) == sorted(private._indices.tolist())
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    first, again, other = (private.parts(3, name)[0] for name in ("a", "a", "b"))
    assert torch.equal(first.chosen(2, 1), again.chosen(2, 1)) and not np.array_equal(first._indices, other._indices)


# a run


@pytest.mark.parametrize("options", [{}, {"partitions": 2, "teachers": 2}])
def test_every_sample_is_answered_once_in_a_run(options: dict[str, int]) -> None:
    federation = run_rounds(build(**options), 10)
    assert federation.wire.up_bytes["anna"] == options.get("partitions", 1) * PUBLIC
    assert federation.wire.down_bytes["anna"] == PUBLIC


def test_before_the_vote_a_single_teacher_is_local_training_bit_for_bit() -> None:
    local = build_federation("local", tau=2, local_stages=2)
    assert differing_clients(run_rounds(build(), 2), run_rounds(local, 2)) == []


def test_all_clients_end_with_the_same_labels_and_start_from_their_own_untrained_model() -> None:
    federation = build()
    start = {n: fingerprint(logic.learner.state_dict()) for n, logic in federation.clients.items()}
    run_rounds(federation, 3)
    labels = {n: logic._labels.tolist() for n, logic in federation.clients.items()}
    assert len(labels["anna"]) == PUBLIC and all(found == labels["anna"] for found in labels.values())
    for n, logic in federation.clients.items():
        logic.learner.load_state_dict(logic._start)
        assert fingerprint(logic.learner.state_dict()) == start[n]


@pytest.mark.parametrize("missed", [(0,), (1,), (2,), (1, 2, 3), (4, 5, 6)])
def test_an_absent_client_does_not_disturb_the_others(missed: tuple[int, ...]) -> None:
    federation = build(teachers=2)
    for t in range(7):
        federation.run_round(t, lambda client, exchange, t=t: client == "ben" and t in missed)
    voted = 4 not in missed
    assert len(federation.clients["ben"]._labels) == (PUBLIC if voted else 0)
    assert len(federation.clients["anna"]._labels) == PUBLIC


@pytest.mark.parametrize("at", [1, 2, 4, 5])
def test_a_run_resumed_at_any_role_equals_the_uninterrupted_one(at: int) -> None:
    whole = run_rounds(build(teachers=2), at)
    resumed = restore(build(teachers=2), state_of(whole))
    run_rounds(whole, range(at, 7))
    assert differing_clients(run_rounds(resumed, range(at, 7)), whole) == []


def test_fedkt_equals_plain_training_and_voting() -> None:
    federation = build_federation(
        "fedkt", nets=TRIO, tau=2, dtype=torch.float64, settings=TorchSettings(lr=LR), teacher_iterations=4
    )
    models = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}
    fresh, public = copy.deepcopy(models), federation.clients["anna"].public
    votes = []
    for n, model in models.items():
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        for stage in range(4):
            for i in range(2):
                x, y = federation.clients[n].private.batch(stage, i)
                descend(optimizer, F.cross_entropy(model(x), y))
        votes.append(model.eval()(public.everything()).argmax(-1))
    labels = torch.stack(votes).mode(0).values  # of three votes; the lowest class if all differ
    for model in fresh.values():
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        for stage in range(2):
            for i in range(2):
                descend(optimizer, F.cross_entropy(model(public.batch(stage, i)), labels[public.ids(stage, i)]))
    run_rounds(federation, 3)
    for n, logic in federation.clients.items():
        assert logic._labels.tolist() == labels.tolist()
        for name, value in fresh[n].state_dict().items():
            torch.testing.assert_close(logic.learner.weights()[name], value, rtol=0, atol=1e-10)


# refusals


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(NotApplicableError, match='teachers = 99, but client "anna" has'):
        build(teachers=99)
    assert METHOD.refuse(FedKTOptions(), 256) is None
    assert METHOD.refuse(FedKTOptions(), 300) == "a vote is one byte; 300 classes need more."
    server = build().server
    server.refuse_unfit("anna", Votes(torch.zeros(1, PUBLIC, dtype=torch.uint8)), 2, 0)
    with pytest.raises(WireError, match="has 3 columns for 40 public samples"):
        server.refuse_unfit("anna", Votes(torch.zeros(1, 3, dtype=torch.uint8)), 2, 0)
    wire = Wire(METHOD.up, METHOD.down, {"s": 1, "K": 3}, torch.float32)
    with pytest.raises(WireError, match="holds 3; expected 0 to 2"):
        wire.up("anna", Votes(torch.tensor([[0, 3]], dtype=torch.uint8)), None, None)
