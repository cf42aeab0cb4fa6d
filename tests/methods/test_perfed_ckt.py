"""PerFed-CKT: deterministic C-means over clients, the nearest centroid as teacher, and its two limits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedal
from fedal.aggregate import cluster_means, nearest
from fedal.engine.loop import Federation
from fedal.errors import NotApplicableError
from fedal.losses import kl, kl_to_probs, l2, l2_of_probs
from fedal.messages import Centroids, Consensus, Outputs
from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method
from fedal.methods.options import TransferOptions
from fedal.methods.outputs.perfed_ckt import METHOD
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, stack_outputs
from plain_rounds import TAU, Logits, check_against_plain
from splits import BATCH, CLASSES, NETS, build_federation, differing_clients, run_rounds


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


UNKNOWN = torch.full((5,), -1)
LINE = torch.tensor([[0.0], [1.0], [10.0], [12.0], [2.0]])


# clustering


@pytest.mark.parametrize("first", range(5))
def test_two_groups_on_a_line_are_found_from_every_start(first: int) -> None:
    labels, means = cluster_means(LINE, UNKNOWN, 2, first)
    assert labels[0] == labels[1] == labels[4] != labels[2] == labels[3]
    assert sorted(means.flatten().tolist()) == [1.0, 11.0]
    assert torch.equal(nearest(LINE, means), labels)


def test_starting_from_earlier_labels_keeps_the_cluster_indices() -> None:
    for before in ([0, 0, 1, 1, 0], [1, 1, 0, 0, 1], [1, -1, 0, -1, -1]):
        labels, _ = cluster_means(LINE, torch.tensor(before), 2, 0)
        assert labels[0] == before[0] and labels[2] == before[2]


def test_one_cluster_holds_all_points_and_n_clusters_are_the_points() -> None:
    labels, means = cluster_means(LINE, UNKNOWN, 1, 3)
    assert not labels.any() and torch.equal(means[0], LINE.mean(0))
    labels, means = cluster_means(LINE, UNKNOWN, 5, 3)
    assert sorted(labels.tolist()) == [0, 1, 2, 3, 4] and torch.equal(means[labels], LINE)


def test_more_clusters_than_distinct_points_leave_some_empty_but_none_undefined() -> None:
    for points in (torch.ones(4, 3), torch.tensor([[0.0], [0.0], [1.0], [1.0]])):
        labels, means = cluster_means(points, torch.full((4,), -1), 3, 2)
        assert means.isfinite().all() and torch.equal(means[labels], points)


def test_clustering_only_lowers_the_variance() -> None:
    """No point is closer to another mean, and the variance is below that of one cluster."""
    points = random(20, 7)
    labels, means = cluster_means(points, torch.full((20,), -1), 3, 0)
    assert torch.equal(nearest(points, means), labels)
    for cluster in range(3):
        torch.testing.assert_close(means[cluster], points[labels == cluster].mean(0))
    assert (points - means[labels]).square().sum() < (points - points.mean(0)).square().sum()


# losses


def test_distances_of_a_hand_case() -> None:
    flat, target = torch.zeros(1, 2).double(), torch.tensor([[1.0, 0.0]]).double()
    assert l2_of_probs(target, flat).value.item() == 0.5
    assert l2_of_probs(target, flat).gradient.tolist() == [[-0.5, 0.5]]
    assert l2(target, flat).value.item() == 1.0 and l2(target, flat).gradient.tolist() == [[-2.0, 0.0]]
    assert kl_to_probs(target, flat).value.item() == pytest.approx(0.6931471805599453, abs=1e-15)  # 0 log 0 = 0
    assert kl_to_probs(target, flat).gradient.tolist() == [[-0.5, 0.5]]


@pytest.mark.parametrize("shape", [(1, 2), (7, 10), (32, 101)])
@pytest.mark.parametrize("E", [0.5, 1.0, 3.0])
def test_gradients_equal_autograd(shape: tuple[int, int], E: float) -> None:
    teacher, f = random(*shape, seed=1), random(*shape, seed=2).requires_grad_()
    p = torch.softmax(teacher / E, -1)
    cases = [
        (l2_of_probs(p, f.detach(), E), (torch.softmax(f / E, -1) - p).square().sum(-1).mean()),
        (l2(teacher, f.detach()), (f - teacher).square().sum(-1).mean()),
        (kl_to_probs(p, f.detach(), E), (p * (p.log() - torch.log_softmax(f / E, -1))).sum(-1).mean()),
    ]
    for loss, value in cases:
        assert loss.value.item() == pytest.approx(value.item(), abs=1e-11)
        torch.testing.assert_close(loss.gradient, torch.autograd.grad(value, f)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(cases[2][0].gradient, kl(teacher, f.detach(), E).gradient, rtol=0, atol=1e-15)


# its limits


class MeanProbsServer(ServerLogic):
    """FedMD's server with averaged probabilities."""

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        reply: Replies | None = None
        for _ in range(self.hp.tau):
            up = yield reply
            present, f = stack_outputs(clients, up)
            reply = {n: Consensus(torch.softmax(f, -1).mean(0), len(present)) for n in present}
        return reply


class MeanProbsClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        for _x, f in self.public_passes(t):
            down = yield Outputs(f)
            self.step(distillation=(torch.softmax(f, -1) - down.mean) / len(f))


INCLUSIVE = Method(
    "fedmd-inclusive", "", TransferOptions, MeanProbsClient, MeanProbsServer,
    up=(Outputs,), down=(Consensus,), needs=frozenset({"public"}),
)  # fmt: skip


def test_rounds_equal_autograd_of_the_distance_to_the_nearest_pair() -> None:
    """Three clients in two clusters: the two whose outputs are closest learn their mean, the third takes no step."""
    pairs = []

    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        p = {n: torch.softmax(each, -1) for n, each in f.items()}
        one, other = min(combinations(p, 2), key=lambda pair: (p[pair[0]] - p[pair[1]]).detach().square().sum())
        centroid = ((p[one] + p[other]) / 2).detach()
        pairs.append((one, other))
        return {n: (p[n] - centroid).square().sum(-1).mean() for n in (one, other)}

    check_against_plain("perfed-ckt", losses, clusters=2)
    assert len(pairs) == 2 * TAU


@pytest.mark.parametrize("tau", [1, 3])
def test_one_cluster_with_kl_of_probabilities_is_fedmd_with_an_inclusive_probability_mean(tau: int) -> None:
    one = run_rounds(build_federation("perfed-ckt", tau=tau, clusters=1, loss="kl"), 3)
    assert differing_clients(one, run_rounds(build_federation(INCLUSIVE, tau=tau), 3)) == []


@pytest.mark.parametrize("space", ["probs", "logits"])
@pytest.mark.parametrize("loss", ["l2", "kl"])
def test_as_many_clusters_as_clients_transfer_nothing(space: str, loss: str) -> None:
    alone = build_federation("perfed-ckt", tau=3, clusters=len(NETS), space=space, loss=loss, public_mode="frozen")
    assert differing_clients(run_rounds(alone, 3), run_rounds(build_federation("local", tau=3), 3)) == []


@pytest.mark.parametrize(
    "options", [{"clusters": 1}, {"space": "logits"}, {"loss": "kl"}, {"distillation": 0.5}, {"temperature": 2.0}]
)
def test_every_option_matters(options: dict[str, Any]) -> None:
    plain = run_rounds(build_federation("perfed-ckt", tau=3), 3)
    assert differing_clients(plain, run_rounds(build_federation("perfed-ckt", tau=3, **options), 3)) == list(NETS)


# the exchange


def server_of(names: Sequence[str], **options: Any) -> Any:
    setup = ServerSetup(tuple(names), 2, METHOD.options(**{"tau": 1, "space": "logits", **options}), 0, torch.float32)
    return METHOD.server(setup)


def ask(server: Any, t: int, sent: dict[str, list[float]]) -> dict[str, Centroids]:
    round_ = server.round(t, ["a", "b", "c", "d"])
    next(round_)
    with pytest.raises(StopIteration) as stop:
        round_.send({n: Outputs(torch.tensor([logits])) for n, logits in sent.items()})
    replies: dict[str, Centroids] = stop.value.value
    return replies


SAID = {"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [9.0, 9.0], "d": [9.0, 8.0]}


def test_every_client_gets_all_centroids_whatever_the_order_of_arrival() -> None:
    replies = ask(server_of(SAID), 0, SAID)
    assert list(replies) == list(SAID)
    assert all(torch.equal(reply.values, replies["a"].values) for reply in replies.values())
    assert sorted(replies["a"].values[:, 0].tolist()) == [[0.5, 0.0], [9.0, 8.5]]
    backwards = ask(server_of(SAID), 0, dict(reversed(SAID.items())))
    assert torch.equal(backwards["a"].values, replies["a"].values)


def test_clusters_keep_their_index_across_batches_and_restarts() -> None:
    server = server_of(SAID)
    first = ask(server, 0, SAID)["a"].values
    moved = {n: [x + 100, y - 50] for n, (x, y) in SAID.items()}  # another batch: other values, the same clusters
    restored = server_of(SAID)
    restored.load_state_dict(server.state_dict())
    for again in (server, restored):
        assert torch.equal(ask(again, 1, moved)["a"].values, first + torch.tensor([100.0, -50.0]))


def test_absent_clients_contribute_nothing_and_keep_their_cluster() -> None:
    server = server_of(SAID)
    ask(server, 0, SAID)
    before = dict(server.cluster_of)
    replies = ask(server, 1, {n: SAID[n] for n in ("a", "b", "c")})
    assert list(replies) == ["a", "b", "c"] and server.cluster_of == before
    assert sorted(replies["a"].values[:, 0].tolist()) == [[0.5, 0.0], [9.0, 9.0]]
    only = ask(server, 2, {"b": [1.0, 0.0]})["b"].values  # fewer clients respond than there are clusters
    assert only[:, 0].tolist() == [[1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_an_iteration_costs_one_batch_of_logits_up_and_one_per_cluster_down(clusters: int) -> None:
    federation = run_rounds(build_federation("perfed-ckt", tau=2, clusters=clusters), 2)
    batch = 4 * BATCH * CLASSES
    assert set(federation.wire.up_bytes.values()) == {4 * batch}
    assert set(federation.wire.down_bytes.values()) == {4 * batch * clusters}


def test_more_clusters_than_clients_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match="clusters = 4 for 3 clients"):
        fedal.run(fedal.Config(method="perfed-ckt", clients=3, clusters=4, rounds=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_learns_digits_in_sixty_iterations_better_than_local_only_training(tmp_path: Path) -> None:
    settings = {"clients": 4, "iterations": 60, "models": "mlp-small,cnn-small", "eval_every": 60}
    run = fedal.run(fedal.Config(method="perfed-ckt", **settings), tmp_path / "run")
    local = fedal.run(fedal.Config(method="local", **settings), tmp_path / "local")
    assert run.final["test_accuracy"] > local.final["test_accuracy"] + 0.03
    assert run.final["up_bytes"] == 4 * 60 * 1280 and run.final["down_bytes"] == 4 * 60 * 2560
