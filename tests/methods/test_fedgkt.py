"""FedGKT: the head's replies stay with their samples, and everything that it reveals is declared."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedal
from fedal.config import REQUIREMENTS
from fedal.engine.loop import Federation
from fedal.errors import ConfigError, NotApplicableError
from fedal.messages import Leak
from fedal.methods.samples.fedgkt import METHOD
from splits import (
    BATCH,
    CLASSES,
    build_federation,
    build_of_table_models,
    differing_clients,
    fingerprint,
    run_rounds,
    with_features,
)

WIDTH = 5
NETS = {"anna": with_features, "bob": with_features, "cleo": with_features}


def build(**options: Any) -> Federation:
    return build_federation("fedgkt", nets=NETS, **{"tau": 2, **options})


# replies belong to their samples


def test_every_reply_stays_with_its_sample_whatever_the_order_of_later_batches() -> None:
    """The authors' code keys replies by position in a shuffled loader: from the second epoch on they are wrong."""
    federation = build()
    newest: dict[str, dict[int, Tensor]] = {n: {} for n in NETS}
    down = federation.wire.down
    exchange = dict.fromkeys(NETS, 0)

    def watched(client_id: str, message: Any) -> Any:
        t, i = divmod(exchange[client_id], 2)
        exchange[client_id] += 1
        samples = federation.clients[client_id].private.ids(t, i).tolist()
        newest[client_id] |= dict(zip(samples, message.values, strict=True))
        return down(client_id, message)

    federation.wire.down = watched  # type: ignore[method-assign]
    run_rounds(federation, 10)
    for n, client in federation.clients.items():
        assert len(newest[n]) > 2 * BATCH, "more than one epoch was run"
        for sample, answer in newest[n].items():
            assert torch.equal(client._answers[sample].float(), answer)
        assert client._answered.nonzero().flatten().tolist() == sorted(newest[n])


def test_shuffling_a_batch_does_not_change_a_target() -> None:
    client = run_rounds(build(), 10).clients["anna"]
    own = client.private.ids(11, 0)
    f = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(0))
    order = torch.arange(BATCH).flip(0)
    plain, shuffled = client._d_distillation(own, f), client._d_distillation(own[order], f[order])
    assert plain.abs().sum() > 0
    assert torch.equal(plain[order], shuffled)


def test_samples_without_a_reply_have_no_distillation_gradient() -> None:
    client = run_rounds(build(tau=1), 1).clients["anna"]
    answered = client._answered.nonzero().flatten()
    others = (~client._answered).nonzero().flatten()
    own = torch.cat([answered[:4], others[:4]])
    gradient = client._d_distillation(own, torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(0)))
    assert gradient[:4].abs().sum(-1).gt(0).all()
    assert gradient[4:].eq(0).all()


# against the authors' losses


def test_the_algorithm_written_with_autograd_gives_the_same_weights() -> None:
    T, tau, steps = 3.0, 2, 2
    federation = build(dtype=torch.float64, tau=tau, temperature=T, server_steps=steps)
    learners = {n: federation.clients[n].learner for n in NETS} | {"head": federation.server._head}
    models = {n: copy.deepcopy(learner.module) for n, learner in learners.items()}
    optimizers = {n: torch.optim.Adam(model.parameters(), lr=learners[n].settings.lr) for n, model in models.items()}

    def step(name: str, loss: Tensor) -> None:
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()

    def kl(teacher: Tensor, student: Tensor) -> Tensor:
        log_q, p = torch.log_softmax(student / T, -1), torch.softmax(teacher.detach() / T, -1)
        return T**2 * F.kl_div(log_q, p, reduction="none").sum(-1)

    answers: dict[str, dict[int, Tensor]] = {n: {} for n in NETS}
    for t in range(8):
        federation.run_round(t)
        for n in NETS:
            for i in range(tau):
                (x, y), own = federation.clients[n].private.batch(t, i), federation.clients[n].private.ids(t, i)
                z = models[n](x)
                known = [(row, answers[n][sample]) for row, sample in enumerate(own.tolist()) if sample in answers[n]]
                loss = F.cross_entropy(z, y)
                for row, answer in known:
                    loss = loss + kl(answer, z[row]) / BATCH
                step(n, loss)
        for i in range(tau):
            up = {
                n: (*federation.clients[n].private.batch(t, i), federation.clients[n].private.ids(t, i)) for n in NETS
            }
            features = {n: models[n].features(x).detach() for n, (x, _, _) in up.items()}
            for _ in range(steps):
                for n, (_, y, _) in up.items():
                    z = models["head"](features[n])
                    logits = models[n].classify(features[n])
                    step("head", kl(logits, z).mean() + F.cross_entropy(z, y))
            for n, (_, _, own) in up.items():
                answers[n] |= dict(zip(own.tolist(), models["head"](features[n]).detach(), strict=True))
    for n, learner in learners.items():
        for found, expected in zip(learner.module.parameters(), models[n].parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_without_distillation_it_is_local_only_training() -> None:
    """Also with BatchNorm: the uploaded pass leaves no trace."""
    for model in ("mlp-small", "cnn-small-bn"):
        plain = run_rounds(build_of_table_models("fedgkt", model, tau=2, distillation=0.0), 3)
        assert differing_clients(plain, run_rounds(build_of_table_models("local", model, tau=2), 3)) == []


def test_the_order_in_which_uploads_arrive_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_rounds(build(), 3)
    original = METHOD.server.round

    def receives_in_reverse(self: Any, t: int, clients: Any) -> Any:
        inner = original(self, t, clients)
        reply = next(inner)
        while True:
            uploads = yield reply
            try:
                reply = inner.send(dict(reversed(uploads.items())))
            except StopIteration as stop:
                return stop.value

    monkeypatch.setattr(METHOD.server, "round", receives_in_reverse)
    found = run_rounds(build(), 3)
    assert differing_clients(expected, found) == []
    assert fingerprint(found.server.state_dict()) == fingerprint(expected.server.state_dict())


def test_a_disconnected_client_returns_with_its_earlier_replies() -> None:
    federation = build()
    federation.run_round(0)
    federation.run_round(1, lambda n, exchange: n == "bob" and exchange == 1)
    known = federation.clients["bob"]._answered.sum()
    assert federation.run_round(2) == list(NETS)
    assert federation.clients["bob"]._answered.sum() >= known
    assert federation.clients["anna"]._answered.sum() > known


# what is declared


def test_what_it_reveals_is_declared_and_can_be_refused() -> None:
    assert METHOD.reveals == Leak.PRIVATE_FEATURES | Leak.PRIVATE_LABELS | Leak.PRIVATE_OUTPUTS
    assert METHOD.reveals & REQUIREMENTS["outputs-only"]
    with pytest.raises(ConfigError, match="features of private samples, labels of private samples"):
        fedal.Config(method="fedgkt", require="outputs-only")


def test_bytes_per_iteration() -> None:
    wire = run_rounds(build(), 2).wire
    assert set(wire.up_bytes.values()) == {4 * 4 * BATCH * (WIDTH + CLASSES + 1)}
    assert set(wire.down_bytes.values()) == {4 * 4 * BATCH * CLASSES}


def test_clients_with_different_feature_widths_are_refused_before_training() -> None:
    with pytest.raises(NotApplicableError, match="one width"):
        build_federation("fedgkt", nets={"anna": with_features, "bob": lambda: with_features(6)})


def test_clients_without_features_are_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="features"):
        build_federation("fedgkt")


def test_it_learns_about_as_well_as_local_only_training(tmp_path: Path) -> None:
    """A client's model receives only replies on its own samples: see docs/methods/fedgkt.md."""
    settings = dict(dataset="digits", clients=4, models="same", iterations=60, eval_every=60, lr=0.003)
    finals = {m: fedal.run(fedal.Config(method=m, **settings), tmp_path / m).final for m in ("local", "fedgkt")}
    assert finals["fedgkt"]["test_accuracy"] > 0.6
    assert finals["fedgkt"]["test_accuracy"] == pytest.approx(finals["local"]["test_accuracy"], abs=0.05)
    assert "server_test_accuracy" not in finals["fedgkt"]
