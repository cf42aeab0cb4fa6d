"""FCCL+: similarities instead of features on the wire, and distillation on all classes except the label."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedal
from fedal.config import ClientConfig, Config
from fedal.data.dataset import Dataset
from fedal.data.split import DataSplit
from fedal.engine.loop import Federation
from fedal.errors import ConfigError, NotApplicableError
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import kl, non_target, similarities, similarity_kl
from fedal.messages import ConsensusAndSimilarities, OutputsAndSimilarities
from fedal.models.classifier import Classifier
from fedal.simulate.assemble import assemble
from splits import (
    BATCH,
    CLASSES,
    InOrder,
    build_federation,
    build_net,
    build_of_table_models,
    differing_clients,
    mlp,
    run_rounds,
    tiny_split,
    with_logics,
)

OMEGA = 0.02


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_labels(shape: tuple[int, int]) -> Tensor:
    return torch.randint(shape[1], (shape[0],), generator=torch.Generator().manual_seed(1))


# non-target distillation


def naive_non_target(teacher: Tensor, f: Tensor, y: Tensor, T: float, renormalise: bool) -> Tensor:
    """As in the authors' code: softmax, remove the label, sum."""
    rest = torch.ones_like(f, dtype=torch.bool).scatter_(1, y[:, None], False)
    if renormalise:
        a, b = (torch.softmax(v[rest].view(len(f), -1) / T, -1) for v in (teacher.detach(), f))
    else:
        a, b = (torch.softmax(v / T, -1)[rest].view(len(f), -1) for v in (teacher.detach(), f))
    return F.kl_div(b.log(), a, reduction="batchmean")


def test_non_target_distillation_of_a_hand_case() -> None:
    teacher = torch.tensor([[0.0, 0.0, 0.0]], dtype=torch.float64)
    student = torch.tensor([[0.0, math.log(2), 0.0]], dtype=torch.float64)  # 1/4, 1/2, 1/4
    label = torch.tensor([0])
    plain = non_target(teacher, student, label)
    assert plain.value.item() == pytest.approx(math.log(2 / 3) / 3 + math.log(4 / 3) / 3, abs=1e-15)
    expected = [2 / 3 / 4, 2 / 3 / 2 - 1 / 3, 2 / 3 / 4 - 1 / 3]  # (1 - a_y) b_k - a_k without the label
    torch.testing.assert_close(plain.gradient, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-15)
    true_kl = non_target(teacher, student, label, renormalise=True)  # 1/2, 1/2 against 2/3, 1/3
    assert true_kl.value.item() == pytest.approx(math.log(3 / 4) / 2 + math.log(3 / 2) / 2, abs=1e-15)


@pytest.mark.parametrize("shape", [(1, 3), (4, 2), (7, 10), (32, 101)])
@pytest.mark.parametrize("T", [1.0, 3.0])
@pytest.mark.parametrize("renormalise", [False, True])
def test_its_gradient_equals_autograd(shape: tuple[int, int], T: float, renormalise: bool) -> None:
    teacher, f, y = random(*shape, seed=1), random(*shape, seed=2).requires_grad_(), some_labels(shape)
    value = naive_non_target(teacher, f, y, T, renormalise)
    loss = non_target(teacher, f.detach(), y, T, renormalise)
    assert loss.value.item() == pytest.approx(value.item(), abs=1e-12)
    torch.testing.assert_close(loss.gradient, torch.autograd.grad(value, f)[0], rtol=0, atol=1e-12)


def test_at_equal_logits_the_authors_form_lowers_the_label_and_a_true_kl_does_nothing() -> None:
    f, y = random(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    assert (non_target(f, f, y).gradient.gather(1, y[:, None]) > 0).all()
    assert non_target(f, f, y, renormalise=True).gradient.abs().max() < 1e-16


def test_with_two_classes_only_the_authors_form_has_a_gradient() -> None:
    teacher, f, y = random(5, 2, seed=1), random(5, 2, seed=2), some_labels((5, 2))
    assert non_target(teacher, f, y).gradient.abs().min() > 0
    assert not non_target(teacher, f, y, renormalise=True).gradient.any()


def test_extreme_logits_stay_finite() -> None:
    far, y = torch.tensor([[1e4, -1e4, 0.0]]), torch.tensor([1])
    for renormalise in (False, True):
        loss = non_target(far, -far, y, 3.0, renormalise)
        assert loss.value.isfinite() and loss.gradient.isfinite().all()


# similarities


def test_similarities_of_a_hand_case() -> None:
    features = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    half = math.sqrt(0.5)
    expected = torch.tensor([[0, half], [0, half], [half, half]], dtype=torch.float64)
    torch.testing.assert_close(similarities(features, 1.0), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(similarities(features, OMEGA), expected / OMEGA, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", [(2, 3), (8, 5), (32, 64)])
@pytest.mark.parametrize("omega", [OMEGA, 0.5])
def test_the_gradient_wrt_the_features_equals_autograd(shape: tuple[int, int], omega: float) -> None:
    target = similarities(random(*shape, seed=1), omega)
    g = random(*shape, seed=2).requires_grad_()
    h = F.normalize(g, dim=1)
    similar = (h @ h.T)[~torch.eye(len(h), dtype=torch.bool)].view(len(h), -1) / omega
    value = F.kl_div(torch.log_softmax(similar, -1), torch.softmax(target, -1), reduction="batchmean")
    loss = similarity_kl(target, g.detach(), omega)
    assert loss.value.item() == pytest.approx(value.item(), abs=1e-12)
    torch.testing.assert_close(loss.gradient, torch.autograd.grad(value, g)[0], rtol=0, atol=1e-12)


def test_clients_with_the_same_geometry_have_nothing_to_learn_whatever_their_width() -> None:
    g = random(8, 5).float()
    wider = torch.cat([g, torch.zeros(8, 3)], dim=1)
    target = torch.stack([similarities(g, OMEGA), similarities(g, OMEGA)]).mean(0)
    assert not similarity_kl(target, g, OMEGA).gradient.any()
    assert similarity_kl(target, wider, OMEGA).gradient.abs().max() < 1e-4


def test_zero_features_have_a_finite_loss_and_no_gradient() -> None:
    g = random(6, 4).float()
    g[2] = 0
    loss = similarity_kl(similarities(random(6, 4, seed=1).float(), OMEGA), g, OMEGA)
    assert loss.value.isfinite() and loss.gradient.isfinite().all() and not loss.gradient[2].any()


# the federation


def of_width(width: int) -> nn.Module:
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Tanh()), nn.Linear(width, CLASSES), width)


def federation_of_widths(widths: dict[str, int], **options: Any) -> Federation:
    config = Config(
        method="fccl+", clients=tuple(ClientConfig(name=n) for n in widths), batch_size=BATCH, precision="fp64",
        options=options,
    )  # fmt: skip
    own = {
        n: TorchLearner(build_net(n, lambda w=w: of_width(w)), TorchSettings(lr=0.01), owner=n, dtype=torch.float64)  # type: ignore[misc]
        for n, w in widths.items()
    }
    return with_logics(assemble(config, tiny_split(tuple(widths)), InOrder(), custom_models=own).federation)


def naive_fccl_plus(federation: Federation, models: dict[str, Any], rounds: int, renormalise: bool) -> None:
    """The authors' losses with autograd, on the same batches; tau = 2, T = 3, mu = 3, a new Adam as in theirs."""
    optimizers: dict[str, torch.optim.Optimizer] = {}
    previous: dict[str, nn.Module] = {}

    def step(n: str, loss: Tensor) -> None:
        optimizers[n].zero_grad()
        loss.backward()
        optimizers[n].step()

    def standard(z: Tensor) -> Tensor:
        return (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-6).sqrt()

    for t in range(rounds):
        for n, model in models.items():
            optimizers[n] = torch.optim.Adam(model.parameters(), lr=0.01)
            for i in range(2):
                x, y = federation.clients[n].private.batch(t, i)
                f = model(x)
                loss = F.cross_entropy(f, y)
                if t:
                    loss = loss + 9 * naive_non_target(previous[n](x), f, y, 3.0, renormalise)
                step(n, loss)
        previous = copy.deepcopy(models)
        for i in range(2):
            x = next(iter(federation.clients.values())).public.batch(t, i)
            f = {n: model(x) for n, model in models.items()}
            similar = {n: similarities(model.features(x), OMEGA) for n, model in models.items()}
            mean = torch.stack([f[n].detach() for n in models]).mean(0)
            mean_similar = torch.stack([similar[n].detach() for n in models]).mean(0)
            for n in models:
                c = standard(f[n]).T @ standard(mean) / BATCH
                off = (1 + c).square().sum() - (1 + c.diagonal()).square().sum()
                distilled = F.kl_div(
                    torch.log_softmax(similar[n], -1), torch.softmax(mean_similar, -1), reduction="batchmean"
                )
                optimizers[n] = torch.optim.Adam(models[n].parameters(), lr=0.01)
                step(n, (1 - c.diagonal()).square().sum() + 0.0051 * off + 3 * distilled)


@pytest.mark.parametrize("renormalise", [False, True])
def test_fccl_plus_equals_autograd_of_the_authors_losses_with_different_widths(renormalise: bool) -> None:
    federation = federation_of_widths({"anna": 5, "ben": 9, "carl": 7}, tau=2, renormalise=renormalise)
    naive = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}  # type: ignore[attr-defined]
    naive_fccl_plus(federation, naive, rounds=3, renormalise=renormalise)
    run_rounds(federation, 3)
    for n, logic in federation.clients.items():
        for name, value in naive[n].state_dict().items():
            torch.testing.assert_close(logic.learner.weights()[name], value, rtol=0, atol=1e-8)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [{"similarity": 0.0}, {"correlation": 0.0}, {"inter": 0.0}, {"temperature": 1.0}, {"renormalise": True},
                {"similarity_temperature": 0.1}, {"self_target": "previous"}, {"fresh_public_optimizer": False}],
)  # fmt: skip
def test_every_option_matters(options: dict[str, Any]) -> None:
    plain, other = build_of_table_models("fccl+", tau=2), build_of_table_models("fccl+", tau=2, **options)
    assert differing_clients(run_rounds(plain, 2), run_rounds(other, 2)) == list(plain.clients)


def test_without_its_losses_it_is_local_only_training() -> None:
    options = {"correlation": 0.0, "inter": 0.0, "similarity": 0.0}
    bare = build_of_table_models("fccl+", fresh_public_optimizer=False, **options)
    local = build_of_table_models("local")
    assert differing_clients(run_rounds(bare, 2), run_rounds(local, 2)) == []


def test_an_iteration_costs_logits_and_similarities_both_ways() -> None:
    federation = run_rounds(build_of_table_models("fccl+", tau=2), 3)
    expected = 6 * 4 * (BATCH * CLASSES + BATCH * (BATCH - 1))
    assert set(federation.wire.up_bytes.values()) == set(federation.wire.down_bytes.values()) == {expected}
    for kind in (OutputsAndSimilarities, ConsensusAndSimilarities):
        sizes = {"B": 32, "B-1": 31, "K": 10}
        assert sum(4 * math.prod(sizes[axis] for axis in axes) for axes in kind.layout.values()) == 5248


def test_an_absent_client_is_left_out_of_both_means() -> None:
    federation = build_of_table_models("fccl+", clients=3, tau=2)
    sent: dict[str, Any] = {}
    federation.watch.exchanged = sent.update
    federation.run_round(0, is_absent=lambda client, exchange: client == "client-01")
    assert list(sent) == ["client-00", "client-02"]
    run_rounds(federation, range(1, 2))
    assert list(sent) == ["client-00", "client-02", "client-01"]


def test_renormalisation_with_two_classes_is_refused_before_training() -> None:
    x = np.random.Generator(np.random.Philox(key=0)).normal(size=(60, 1, 4, 4)).astype(np.float32)
    y = np.arange(60) % 2
    split = DataSplit(Dataset("two", x, y, x, y, 2), {"client-00": np.arange(20, 40), "client-01": np.arange(40, 60)},
                  np.arange(20), x[:20], 0)  # fmt: skip
    config = Config(method="fccl+", clients=2, batch_size=BATCH, models="mlp-small")
    run_rounds(assemble(config, split, InOrder()).federation, 2)
    with pytest.raises(NotApplicableError, match=r"fccl\+: renormalise = true has no effect with 2 classes"):
        assemble(config.with_(renormalise=True), split, InOrder())


def test_a_model_without_features_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="has no features"):
        build_federation("fccl+", nets={"anna": mlp, "ben": mlp})


def test_the_kl_of_similarities_is_the_one_of_logits() -> None:
    target, g = similarities(random(6, 4, seed=1), 0.5), random(6, 4, seed=2)
    assert similarity_kl(target, g, 0.5).value == kl(target, similarities(g, 0.5)).value


def test_it_learns_digits_in_sixty_iterations_better_than_local_only_training(tmp_path: Path) -> None:
    settings = {"clients": 4, "iterations": 60, "models": "mlp-small,cnn-small", "eval_every": 60}
    run = fedal.run(fedal.Config(method="fccl+", **settings), tmp_path / "run")
    local = fedal.run(fedal.Config(method="local", **settings), tmp_path / "local")
    assert run.final["test_accuracy"] > local.final["test_accuracy"] + 0.03
    assert run.final["up_bytes"] == run.final["down_bytes"] == 4 * 60 * 5248
    assert run.final["disagreement"] > 0
