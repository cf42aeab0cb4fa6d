"""FCCL: the cross-correlation loss, pre-training as rounds without exchange, teachers that outlive a round."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedal
from fedal.engine.loop import Federation
from fedal.errors import NotApplicableError
from fedal.learners.torch_learner import TorchSettings
from fedal.losses import cross_correlation
from fedal.records.checkpoint import load_newest, save_checkpoint
from splits import (
    BATCH,
    CLASSES,
    NETS,
    build_federation,
    conv_batch_norm,
    differing_clients,
    fingerprint,
    mlp,
    restore,
    run_rounds,
    state_of,
)

LAMBDA = 0.0051


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive_correlation(target: Tensor, f: Tensor, weight: float, unbiased: bool) -> Tensor:
    def standard(z: Tensor) -> Tensor:
        return (z - z.mean(0)) / (z.var(0, unbiased=unbiased) + 1e-6).sqrt()

    c = standard(f).T @ standard(target.detach()) / len(f)
    on = (1 - c.diagonal()).square().sum()
    return on + weight * ((1 + c).square().sum() - (1 + c.diagonal()).square().sum())


# the loss


def test_the_correlation_of_a_hand_case() -> None:
    f = torch.tensor([[0.0, 0.0], [2.0, -2.0]], dtype=torch.float64)  # columns -1, 1 and 1, -1 once centred
    assert cross_correlation(f, f, LAMBDA).value.item() == pytest.approx(0, abs=1e-5)
    flipped = f * torch.tensor([1.0, -1.0])  # C = [[1, 1], [-1, -1]]
    assert cross_correlation(flipped, f, LAMBDA).value.item() == pytest.approx(4 + 4 * LAMBDA, abs=1e-5)


@pytest.mark.parametrize("shape", [(2, 2), (8, 3), (32, 10), (16, 40)])
@pytest.mark.parametrize("unbiased", [False, True])
def test_its_gradient_equals_autograd(shape: tuple[int, int], unbiased: bool) -> None:
    target, f = random(*shape, seed=1), random(*shape, seed=2).requires_grad_()
    value = naive_correlation(target, f, LAMBDA, unbiased)
    expected = torch.autograd.grad(value, f)[0]
    loss = cross_correlation(target, f.detach(), LAMBDA, unbiased)
    assert loss.value.item() == pytest.approx(value.item(), abs=1e-12)
    torch.testing.assert_close(loss.gradient, expected, rtol=0, atol=1e-12)


def test_equal_logits_have_no_loss_on_the_diagonal_unless_std_and_correlation_divide_differently() -> None:
    f = random(32, 10)
    assert cross_correlation(f, f, 0.0).value.item() == pytest.approx(0, abs=1e-10)
    assert cross_correlation(f, f, 0.0, unbiased_std=True).value.item() == pytest.approx(10 / 32**2, abs=1e-6)


def test_equal_logits_cannot_bring_different_classes_below_their_bound() -> None:
    """A correlation matrix has a mean off-diagonal of at least -1 / (K - 1)."""
    bound = 90 * (1 - 1 / 9) ** 2
    assert bound == pytest.approx(71.11, abs=0.01)
    centred = random(32, 10)
    centred = centred - centred.mean(-1, keepdim=True)
    for f in (random(32, 10, seed=3), centred, random(1000, 10)):
        assert cross_correlation(f, f, 1.0).value.item() > bound - 1e-3


def test_scale_and_shift_of_a_class_change_nothing() -> None:
    target, f = random(32, 10, seed=1), random(32, 10, seed=2)
    scale, shift = random(10, seed=3).abs() + 0.5, random(10, seed=4)
    plain = cross_correlation(target, f, LAMBDA).value.item()
    assert cross_correlation(target, f * scale + shift, LAMBDA).value.item() == pytest.approx(plain, rel=1e-5)
    assert cross_correlation(target * scale + shift, f, LAMBDA).value.item() == pytest.approx(plain, rel=1e-5)


def test_constant_classes_have_a_finite_loss() -> None:
    f = random(8, 3).float()
    f[:, 1] = 5.0
    for target, student in ((f, random(8, 3, seed=1).float()), (random(8, 3, seed=1).float(), f), (f, f)):
        loss = cross_correlation(target, student, LAMBDA)
        assert loss.value.isfinite() and loss.gradient.isfinite().all()


# the federation


def test_pre_training_is_local_training_in_full_rounds_and_sends_nothing() -> None:
    fccl = run_rounds(build_federation("fccl", tau=2, pretrain_iterations=5), 3)  # ceil(5 / 2) rounds
    assert differing_clients(fccl, run_rounds(build_federation("local", tau=2), 3)) == []
    assert fccl.wire.up_bytes.total() == fccl.wire.down_bytes.total() == 0
    run_rounds(fccl, range(3, 4))
    assert set(fccl.wire.up_bytes.values()) == set(fccl.wire.down_bytes.values()) == {2 * 4 * BATCH * CLASSES}


def test_without_its_losses_it_is_local_only_training() -> None:
    options = {"correlation": 0.0, "inter": 0.0, "intra": 0.0, "public_mode": "frozen", "fresh_public_optimizer": False}
    bare = run_rounds(build_federation("fccl", tau=2, pretrain_iterations=2, **options), 3)
    assert differing_clients(bare, run_rounds(build_federation("local", tau=2), 3)) == []


@pytest.mark.parametrize(
    "options", [{"self_target": "previous"}, {"self_target": "exclude"}, {"unbiased_std": True}, {"inter": 0.0},
                {"intra": 0.0}, {"off_diagonal": 0.0}, {"correlation": 0.5}, {"fresh_public_optimizer": False},
                {"pretrain_iterations": 0}, {"temperature": 2.0}],
)  # fmt: skip
def test_every_option_matters(options: dict[str, Any]) -> None:
    plain = run_rounds(build_federation("fccl", tau=2, pretrain_iterations=2), 3)
    other = run_rounds(build_federation("fccl", **{"tau": 2, "pretrain_iterations": 2, **options}), 3)
    assert differing_clients(plain, other) == list(NETS)


def test_the_mode_of_teachers_matters_only_with_batch_norm() -> None:
    nets = {"anna": mlp, "ben": conv_batch_norm}
    played = [
        run_rounds(build_federation("fccl", nets=nets, pretrain_iterations=1, teacher_mode=mode, correlation=0.0), 3)
        for mode in ("eval", "train")
    ]
    assert differing_clients(*played) == ["ben"]


def naive_fccl(federation: Federation, models: dict[str, nn.Module], rounds: int, lr: float, **options: Any) -> None:
    """The authors' losses with autograd, on the same batches; tau = 2, one round of pre-training."""
    self_target, fresh = options.get("self_target", "current"), options.get("fresh_public_optimizer", True)
    names = list(models)

    def adam(n: str) -> torch.optim.Optimizer:
        return torch.optim.Adam(models[n].parameters(), lr=lr)

    def step(n: str, loss: Tensor) -> None:
        optimizers[n].zero_grad()
        loss.backward()
        optimizers[n].step()

    def pull(teacher: nn.Module, x: Tensor, f: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(f, -1), torch.softmax(teacher.eval()(x).detach(), -1), reduction="batchmean")

    optimizers = {n: adam(n) for n in names}
    inter: dict[str, nn.Module] = {}
    for t in range(rounds):
        if t == 1:
            inter, intra = copy.deepcopy(models), copy.deepcopy(models)
        for n in names:
            for i in range(2):
                x, y = federation.clients[n].private.batch(t, i)
                f = models[n](x)
                loss = F.cross_entropy(f, y)
                step(n, loss + pull(inter[n], x, f) + pull(intra[n], x, f) if t else loss)
        if t == 0:
            continue
        inter = copy.deepcopy(models)
        for i in range(2):
            x = federation.clients[names[0]].public.batch(t, i)
            f = {n: models[n](x) for n in names}
            losses = {}
            for n in names:
                sent = {m: f[m].detach() for m in names}
                if self_target == "previous":
                    sent[n] = inter[n].eval()(x).detach()
                elif self_target == "exclude":
                    del sent[n]
                target = torch.stack(list(sent.values())).mean(0)
                losses[n] = naive_correlation(target, f[n], LAMBDA, options.get("unbiased_std", False))
            for n in names:
                if fresh:
                    optimizers[n] = adam(n)
                step(n, losses[n])
        if fresh:
            optimizers = {n: adam(n) for n in names}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"self_target": "previous"},
        {"self_target": "exclude"},
        {"unbiased_std": True},
        {"fresh_public_optimizer": False},
    ],
)
def test_fccl_equals_autograd_of_the_authors_losses(options: dict[str, Any]) -> None:
    nets = {"anna": mlp, "ben": conv_batch_norm, "carl": mlp}
    settings = TorchSettings(lr=0.01)
    federation = build_federation(
        "fccl", nets=nets, dtype=torch.float64, settings=settings, tau=2, pretrain_iterations=2, **options
    )
    naive = {n: copy.deepcopy(logic.learner.module) for n, logic in federation.clients.items()}  # type: ignore[attr-defined]
    naive_fccl(federation, naive, rounds=4, lr=0.01, **options)
    run_rounds(federation, 4)
    for n, logic in federation.clients.items():
        for name, value in naive[n].state_dict().items():
            torch.testing.assert_close(logic.learner.weights()[name], value, rtol=0, atol=1e-8)  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", [1, 2, 3])  # in pre-training, at its end, after the first exchange
def test_teachers_survive_a_restart_bit_for_bit(before: int, tmp_path: Path) -> None:
    uninterrupted = run_rounds(build_federation("fccl", tau=2, pretrain_iterations=4), before)
    save_checkpoint(tmp_path, 1, state_of(uninterrupted))
    run_rounds(uninterrupted, range(before, 5))
    saved = load_newest(tmp_path, warn=pytest.fail)
    assert saved is not None
    restored = restore(build_federation("fccl", tau=2, pretrain_iterations=4), saved[1])
    run_rounds(restored, range(before, 5))
    assert fingerprint(state_of(restored)) == fingerprint(state_of(uninterrupted))


def test_the_intra_teacher_is_fixed_and_the_inter_teacher_follows() -> None:
    federation = run_rounds(build_federation("fccl", tau=2, pretrain_iterations=2), 2)
    first = {n: logic.state_dict() for n, logic in federation.clients.items()}
    run_rounds(federation, range(2, 3))
    for n, logic in federation.clients.items():
        assert fingerprint(logic.state_dict()["intra"]) == fingerprint(first[n]["intra"])
        assert fingerprint(logic.state_dict()["inter"]) != fingerprint(first[n]["inter"])


def test_a_client_that_missed_the_end_of_pre_training_freezes_its_current_model() -> None:
    federation = build_federation("fccl", tau=2, pretrain_iterations=2)
    federation.run_round(0, is_absent=lambda client, exchange: client == "ben")
    untrained = federation.clients["ben"].learner.state_dict()["model"]
    run_rounds(federation, range(1, 3))
    assert fingerprint(federation.clients["ben"].state_dict()["intra"]) == fingerprint(untrained)


def test_a_fresh_optimizer_needs_a_learner_that_can_reset_it() -> None:
    class Narrow:
        def __init__(self, learner: Any) -> None:
            for verb in ("logits", "learn", "forget", "frozen", "predict", "state_dict", "load_state_dict"):
                setattr(self, verb, getattr(learner, verb))

    run_rounds(build_federation("fccl", wrap=Narrow, pretrain_iterations=0, fresh_public_optimizer=False), 1)
    with pytest.raises(NotApplicableError, match=r'fresh_public_optimizer = true: the learner of client "anna" has no'):
        build_federation("fccl", wrap=Narrow)


def test_the_papers_preset_pre_trains_for_a_thousand_iterations() -> None:
    options = fedal.Config(method="fccl", preset="paper").options
    assert options.model_dump()["pretrain_iterations"] == 1000 and options.tau == 5


def test_it_learns_digits_after_sixty_iterations(tmp_path: Path) -> None:
    config = fedal.Config(
        method="fccl", clients=3, iterations=60, pretrain_iterations=20, models="mlp-small,cnn-small-bn"
    )
    run = fedal.run(config, tmp_path / "run")
    assert run.final["test_accuracy"] > 0.5
    assert run.final["up_bytes"] == run.final["down_bytes"] == 3 * 40 * 1280
