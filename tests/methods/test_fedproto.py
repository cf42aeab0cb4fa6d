"""FedProto: class means of features with and without public data; absent classes never count."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedal
from fedal.engine.loop import Federation
from fedal.errors import NotApplicableError
from fedal.learners.torch_learner import TorchSettings
from fedal.messages import ClassFeatures, Leak
from fedal.methods.features import fedproto_public
from fedal.methods.server import ServerSetup
from fedal.methods.statistics import fedproto
from splits import (
    BATCH,
    CLASSES,
    build_federation,
    build_net,
    conv_batch_norm,
    differing_clients,
    fingerprint,
    mlp,
    run_rounds,
    split_of_classes,
    with_features,
)

WIDTH, LR = 5, 0.01
NETS = {"anna": with_features, "ben": with_features, "cleo": with_features}
SKEWED = {"anna": (0, 1), "ben": (1,), "cleo": (0, 1)}  # no client has class 2, and ben has only one class


def build(method: str, **settings: Any) -> Federation:
    return build_federation(method, nets=NETS, **settings)


def in_double(method: str, **options: Any) -> tuple[Federation, dict[str, Any]]:
    """A federation and plain copies of its models, to train with autograd on the losses as written."""
    settings = TorchSettings(lr=LR, fused=False)
    federation = build(method, dtype=torch.float64, settings=settings, **options)
    return federation, {n: build_net(n, with_features).double() for n in NETS}


def assert_same_weights(federation: Federation, models: dict[str, Any]) -> None:
    for n, model in models.items():
        for name, value in federation.clients[n].learner.weights().items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-12)


# the server


def server(**options: Any) -> fedproto.FedProtoServer:
    setup = ServerSetup(("anna", "ben"), 3, fedproto.FedProtoOptions(**options), 0, torch.float32, feature_width=2)
    return fedproto.FedProtoServer(setup)


def uploaded(counts: list[int], rows: list[list[float]]) -> ClassFeatures:
    return ClassFeatures(torch.tensor(rows), torch.tensor(counts, dtype=torch.int32))


def answer(half: fedproto.FedProtoServer, up: dict[str, ClassFeatures]) -> dict[str, list[list[float]]]:
    round_ = half.round(0, ["anna", "ben"])
    next(round_)
    with pytest.raises(StopIteration) as stop:
        round_.send(up)
    return {n: message.rows.tolist() for n, message in stop.value.value.items()}


@pytest.mark.parametrize(("average", "shared"), [("clients", [2.0, 3.0]), ("samples", [1.5, 2.5])])
def test_a_prototype_is_the_mean_over_the_clients_that_have_the_class(average: str, shared: list[float]) -> None:
    up = {"ben": uploaded([1, 0, 0], [[3.0, 4.0]]), "anna": uploaded([3, 0, 2], [[1.0, 2.0], [7.0, 8.0]])}
    expected = [shared, [0.0, 0.0], [7.0, 8.0]]
    assert answer(server(average=average), up) == {"anna": expected, "ben": expected}


def test_a_class_without_uploads_keeps_its_last_prototype() -> None:
    half = server()
    answer(half, {"anna": uploaded([0, 0, 1], [[7.0, 8.0]])})
    assert answer(half, {"ben": uploaded([1, 0, 0], [[3.0, 4.0]])}) == {"ben": [[3.0, 4.0], [0.0, 0.0], [7.0, 8.0]]}


# the client


@pytest.mark.parametrize("tau", [1, 3])
def test_a_round_equals_autograd_of_the_written_loss(tau: int) -> None:
    federation, models = in_double("fedproto", tau=tau, distillation=2.0)
    run_rounds(federation, 3)
    optimizers = {n: torch.optim.Adam(models[n].parameters(), lr=LR) for n in NETS}
    prototypes: dict[int, Tensor] = {}
    for t in range(3):
        means: dict[int, list[Tensor]] = {}
        for n, model in models.items():
            seen: dict[int, list[Tensor]] = {}
            for i in range(tau):
                x, y = federation.clients[n].private.batch(t, i)
                g = model.features(x)
                target = torch.stack([prototypes.get(int(k), g[j].detach()) for j, k in enumerate(y)])
                loss = F.cross_entropy(model.classify(g), y) + 2.0 * F.mse_loss(g, target)
                optimizers[n].zero_grad()
                loss.backward()
                optimizers[n].step()
                for row, label in zip(g.detach(), y, strict=True):
                    seen.setdefault(int(label), []).append(row)
            for label, rows in seen.items():
                means.setdefault(label, []).append(torch.stack(rows).mean(0))
        prototypes |= {label: torch.stack(rows).mean(0) for label, rows in means.items()}
    assert_same_weights(federation, models)


def test_without_its_term_it_is_local_only_training() -> None:
    assert differing_clients(run_rounds(build("fedproto", distillation=0.0), 3), run_rounds(build("local"), 3)) == []
    assert differing_clients(run_rounds(build("fedproto"), 3), run_rounds(build("local"), 3)) == list(NETS)


def test_a_sample_whose_class_has_no_prototype_adds_nothing() -> None:
    client = build("fedproto").clients["anna"]
    client.prototypes = torch.tensor([[1.0] * WIDTH, [0.0] * WIDTH, [2.0] * WIDTH])
    g = torch.randn(3, WIDTH)
    target = client._target(g, torch.tensor([2, 1, 0]))
    assert torch.equal(target, torch.stack([torch.full((WIDTH,), 2.0), g[1], torch.ones(WIDTH)]))


def test_only_the_classes_that_were_seen_are_sent() -> None:
    sent: dict[str, Any] = {}
    federation = run_rounds(build("fedproto", tau=4, split=split_of_classes(SKEWED), observe=sent.update), 1)
    for n, classes in SKEWED.items():
        assert sent[n].rows.shape == (len(classes), WIDTH)
        assert sent[n].counts.nonzero().flatten().tolist() == list(classes)
        assert sent[n].counts.sum() == 4 * BATCH
        assert federation.wire.up_bytes[n] == 4 * len(classes) * WIDTH + 4 * CLASSES
        assert federation.wire.down_bytes[n] == 4 * CLASSES * WIDTH
    assert not federation.server.prototypes[2].any()


def test_fresh_prototypes_are_means_over_all_private_samples_after_the_round() -> None:
    sent: dict[str, Any] = {}
    federation = run_rounds(build("fedproto", prototypes="fresh", observe=sent.update), 1)
    for n, client in federation.clients.items():
        x, y = (torch.cat(parts) for parts in zip(*client.private.everything(), strict=True))
        features = client.learner.module.features(x).detach()
        expected = torch.stack([features[y == label].mean(0) for label in range(CLASSES)])
        torch.testing.assert_close(sent[n].rows, expected, rtol=0, atol=1e-6)
        assert torch.equal(sent[n].counts, client.private.label_counts.int())


def test_a_client_that_misses_an_exchange_keeps_the_last_prototypes() -> None:
    federation = run_rounds(build("fedproto"), 1)
    before = fingerprint(federation.clients["ben"].prototypes)
    federation.run_round(1, is_absent=lambda client, exchange: client == "ben")
    assert fingerprint(federation.clients["ben"].prototypes) == before
    assert fingerprint(federation.clients["anna"].prototypes) != before
    run_rounds(federation, range(2, 3))
    assert fingerprint(federation.clients["ben"].prototypes) == fingerprint(federation.clients["anna"].prototypes)


def test_two_local_stages_draw_the_batches_of_twice_as_many_steps() -> None:
    doubled = run_rounds(build("fedproto", tau=2, local_stages=2, distillation=0.0), 3)
    assert differing_clients(doubled, run_rounds(build("local", tau=4), 3)) == []
    assert fedproto.METHOD.local_steps(fedproto.FedProtoOptions(tau=2, local_stages=2)) == 4


# on public data


@pytest.mark.parametrize("tau", [1, 3])
def test_on_public_data_a_round_equals_autograd_of_the_written_loss(tau: int) -> None:
    federation, models = in_double("fedproto-public", tau=tau, distillation=2.0)
    run_rounds(federation, 3)
    optimizers = {n: torch.optim.Adam(models[n].parameters(), lr=LR) for n in NETS}
    for t in range(3):
        for n, model in models.items():
            for i in range(tau):
                x, y = federation.clients[n].private.batch(t, i)
                optimizers[n].zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizers[n].step()
        for i in range(tau):
            x = federation.clients["anna"].public.batch(t, i)
            g = {n: model.features(x) for n, model in models.items()}
            for n in models:
                others = torch.stack([g[m].detach() for m in models if m != n]).mean(0)
                optimizers[n].zero_grad()  # the last layer has no gradient at all, so Adam does not change it
                (2.0 * F.mse_loss(g[n], others)).backward()
                optimizers[n].step()
    assert_same_weights(federation, models)


def test_the_last_layer_does_not_change_on_public_data() -> None:
    client = build("fedproto-public", tau=1).clients["anna"]
    round_ = client.round(0)
    features = next(round_).values
    before = copy.deepcopy(client.learner.module.state_dict())
    with pytest.raises(StopIteration):
        round_.send(fedproto_public.FeatureConsensus(torch.zeros_like(features), 2))
    after = client.learner.module.state_dict()
    assert {name.partition(".")[0] for name in after if not torch.equal(after[name], before[name])} == {"body"}


def test_on_public_data_without_its_term_it_is_local_only_training() -> None:
    assert (
        differing_clients(run_rounds(build("fedproto-public", distillation=0.0), 3), run_rounds(build("local"), 3))
        == []
    )


def test_features_of_the_public_batch_cross_in_every_iteration() -> None:
    federation = run_rounds(build("fedproto-public", tau=2), 3)
    assert set(federation.wire.up_bytes.values()) == set(federation.wire.down_bytes.values()) == {6 * 4 * BATCH * WIDTH}


# declarations and refusals


def test_what_they_reveal() -> None:
    assert fedproto.METHOD.reveals == Leak.CLASS_FEATURES | Leak.LABEL_COUNTS
    assert fedproto_public.METHOD.reveals == Leak.PUBLIC_FEATURES
    assert fedproto.METHOD.black_box and fedproto_public.METHOD.black_box


@pytest.mark.parametrize("method", ["fedproto", "fedproto-public"])
def test_different_feature_widths_are_refused_before_training(method: str, tmp_path: Path) -> None:
    x, y = np.random.Generator(np.random.Philox(key=0)).normal(size=(200, 1, 4, 4)), np.arange(200) % CLASSES
    data = fedal.Dataset("tiny", x.astype(np.float32), y, x[:40].astype(np.float32), y[:40], CLASSES)
    config = fedal.Config(method=method, clients=2, iterations=5, public_size=40)
    models = {"client-00": with_features(5), "client-01": with_features(6)}
    with pytest.raises(NotApplicableError, match=rf"{method} compares features and needs one width.*: 5, .*: 6"):
        fedal.run(config, tmp_path / "run", data=data, models=models)
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize("method", ["fedproto", "fedproto-public"])
@pytest.mark.parametrize("net", [mlp, conv_batch_norm])
def test_a_model_without_features_is_refused_before_training(method: str, net: Any) -> None:
    with pytest.raises(NotApplicableError, match="Sequential has no features"):
        build_federation(method, nets={"anna": with_features, "ben": net})


@pytest.mark.parametrize("method", ["fedproto", "fedproto-public"])
def test_it_learns_digits(method: str, tmp_path: Path) -> None:
    """Between different models of one width; docs/methods explain why neither beats local-only training here."""
    run = fedal.run(fedal.Config(method=method, clients=3, iterations=60), tmp_path / "run")
    assert run.final["test_accuracy"] > 0.4
    per_iteration = 4 * 32 * 64
    if method == "fedproto":
        assert run.final["down_bytes"] == 3 * 12 * 4 * 10 * 64
    else:
        assert run.final["up_bytes"] == run.final["down_bytes"] == 3 * 60 * per_iteration
