"""How a client trains: schedules, AdamW, clipping, class weights, label smoothing, settings per client, keep_best."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedal
from fedal.config.local_settings import own_settings
from fedal.errors import ConfigError, Stopped
from fedal.learners.schedules import rate
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import PrivateLoss, balanced_weights, d_cross_entropy
from fedal.models.logits_of import logits_of
from fedal.simulate.build import private_loss, steps_per_iteration
from splits import build_of_table_models, split_of_classes

TINY: dict[str, Any] = dict(
    method="fedmd",
    clients=2,
    models="mlp-small",
    rounds=4,
    tau=2,
    batch_size=8,
    public_size=40,
    eval_every=2,
    workers=1,
)


def weights(run: fedal.Run, client: str = "client-00") -> dict[str, Tensor]:
    return load_file(run.path / f"models/{client}.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# schedules


def test_schedules_at_hand_computed_steps() -> None:
    assert [rate("linear", step, 10, 0.2) for step in (0, 5, 10, 99)] == pytest.approx([1, 0.6, 0.2, 0.2])
    assert [rate("cosine", step, 10, 0.2) for step in (0, 5, 10, 99)] == pytest.approx([1, 0.6, 0.2, 0.2])
    assert rate("cosine", 2, 8, 0.0) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert [rate("exponential", step, 10, 0.01) for step in (0, 5, 10, 99)] == pytest.approx([1, 0.1, 0.01, 0.01])
    assert rate("constant", 7, 10, 0.2) == 1


def linear_learner(**settings: Any) -> TorchLearner:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).view(2, 3) / 10)
        layer.bias.zero_()
    return TorchLearner(layer, TorchSettings(**settings))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_uses_the_rate_of_its_number_also_after_a_restart(optimizer: Any, fused: bool) -> None:
    how = dict(optimizer=optimizer, lr=0.1, fused=fused, schedule="linear", schedule_steps=4, schedule_end=0.5)
    learner, x, g = linear_learner(**how), torch.ones(1, 3), torch.tensor([[1.0, -1.0]])
    rates = []
    for _ in range(6):
        learner.logits(x)
        learner.learn(g)
        rates.append(learner._optimizer.param_groups[0]["lr"])
        again = linear_learner(**how)
        again.load_state_dict(learner.state_dict())
        learner = again
    assert rates == pytest.approx([0.1, 0.0875, 0.075, 0.0625, 0.05, 0.05])


def test_fused_adamw_is_that_of_torch() -> None:
    """The weights shrink by lr x weight_decay each step; with Adam the decay would enter the moments."""
    how: dict[str, Any] = dict(lr=0.1, weight_decay=0.3)
    fused, plain = (linear_learner(optimizer="adamw", fused=each, **how) for each in (True, False))
    adam = linear_learner(optimizer="adam", **how)
    for step in range(4):
        for learner in (fused, plain, adam):
            f = learner.logits(torch.tensor([[1.0, 2.0, step]]))
            learner.learn(d_cross_entropy(f, torch.tensor([step % 2])))
    torch.testing.assert_close(fused.weights()["weight"], plain.weights()["weight"], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(adam.weights()["weight"], plain.weights()["weight"], atol=1e-3)


def test_clipping_bounds_the_norm_of_the_whole_gradient() -> None:
    learner = linear_learner(optimizer="sgd", lr=1.0, clip=0.5)
    before = learner.weights()
    learner.logits(torch.ones(1, 3))
    learner.learn(torch.tensor([[30.0, -40.0]]))
    moved = torch.cat([(learner.weights()[name] - before[name]).flatten() for name in before])
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_an_iteration_has_as_many_steps_as_the_method_takes() -> None:
    assert steps_per_iteration(fedal.Config(method="fedal", tau=3)) == 2
    assert steps_per_iteration(fedal.Config(method="local", tau=3)) == 1
    assert steps_per_iteration(fedal.Config(method="local", tau=3, local_stages=2)) == 2


# loss


@pytest.mark.parametrize("listed", [None, [0.5, 2.0, 4.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_torch_s_cross_entropy(listed: list[float] | None, smoothing: float) -> None:
    f = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y, w = torch.tensor([0, 1, 2, 2, 1, 0, 0]), None if listed is None else torch.tensor(listed, dtype=torch.float64)
    nn.functional.cross_entropy(f, y, weight=w, label_smoothing=smoothing).backward()
    torch.testing.assert_close(PrivateLoss(w, smoothing).gradient(f.detach(), y), f.grad, rtol=1e-12, atol=1e-14)


def test_smoothing_over_own_classes_of_a_hand_case() -> None:
    """Equal logits of two own classes: p = 1/2 each, targets 0.85 and 0.15. The absent class has neither."""
    own = torch.tensor([True, False, True])
    f = torch.tensor([[7.0, -math.inf, 7.0]], dtype=torch.float64)
    found = PrivateLoss(smoothing=0.3, own=own).gradient(f, torch.tensor([2]))
    assert found.tolist() == [[pytest.approx(0.35), 0.0, pytest.approx(-0.35)]]


OWN = torch.tensor([[True, False, True, True], [False, True, True, False]])


@pytest.mark.parametrize("listed", [None, [0.5, 2.0, 4.0, 1.5]])
@pytest.mark.parametrize("client", [0, 1])
def test_smoothing_over_own_classes_is_torch_s_cross_entropy_on_them(client: int, listed: list[float] | None) -> None:
    own = OWN[client]
    classes = own.nonzero().flatten()
    f = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.arange(7) % len(classes)
    w = None if listed is None else torch.tensor(listed, dtype=torch.float64)
    nn.functional.cross_entropy(
        f[:, classes], y, weight=None if w is None else w[classes], label_smoothing=0.3
    ).backward()
    shifted = f.detach().masked_fill(~own, -math.inf)
    found = PrivateLoss(w, 0.3, own).gradient(shifted, classes[y])
    torch.testing.assert_close(found, f.grad, rtol=1e-12, atol=1e-14)
    assert (found[:, ~own] == 0).all()


@pytest.mark.parametrize("listed", [None, [0.5, 2.0, 4.0, 1.5]])
def test_stacked_clients_have_the_gradients_of_single_ones(listed: list[float] | None) -> None:
    w = None if listed is None else torch.tensor(listed)
    f = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).masked_fill(~OWN[:, None], -math.inf)
    y = torch.tensor([[0, 2, 3, 0, 2], [1, 2, 1, 1, 2]])
    together = PrivateLoss(w, 0.3, OWN[:, None]).gradient(f, y)
    alone = torch.stack([PrivateLoss(w, 0.3, own).gradient(*each) for own, *each in zip(OWN, f, y, strict=True)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_classes", [3, 7, 10])
def test_smoothing_over_own_classes_has_the_bits_of_plain_smoothing_if_none_is_absent(
    n_classes: int, dtype: torch.dtype
) -> None:
    f = torch.randn(9, n_classes, dtype=dtype, generator=torch.Generator().manual_seed(0))
    y = torch.arange(9) % n_classes
    for smoothing in (0.05, 0.1, 0.3, 0.7):
        own = torch.ones(n_classes, dtype=torch.bool)
        assert torch.equal(
            PrivateLoss(None, smoothing, own).gradient(f, y), PrivateLoss(None, smoothing).gradient(f, y)
        )


def test_restricted_clients_with_smoothing_leave_absent_logits_alone() -> None:
    split = split_of_classes({"client-00": (0, 1), "client-01": (1, 2), "client-02": (0, 1, 2)})
    how: dict[str, Any] = dict(split=split, label_smoothing=0.2)
    clients = build_of_table_models("fedmd", **how, options={"local_loss": "restricted"}).clients  # type: ignore[attr-defined]
    plain = build_of_table_models("fedmd", **how).clients  # type: ignore[attr-defined]
    f = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    for client, absent in (("client-00", [2]), ("client-01", [0])):
        found = clients[client].d_supervised(f, torch.ones(8, dtype=torch.int64))
        assert (found[:, absent] == 0).all() and (found[:, 1] < 0).all()
    everything = [each["client-02"].d_supervised(f, torch.arange(8) % 3) for each in (clients, plain)]
    assert torch.equal(*everything)


def test_balanced_weights_by_hand() -> None:
    assert balanced_weights(torch.tensor([6, 2, 0])).tolist() == pytest.approx([8 / 12, 2.0, 1.0])


def test_class_weights_must_fit_the_classes() -> None:
    class Private:
        n_classes, label_counts = 3, torch.tensor([1, 1, 1])

    config = fedal.Config(class_weights=(1.0, 2.0))
    with pytest.raises(ConfigError, match="2 numbers; this data has 3 classes"):
        private_loss(config.local("a"), Private())  # type: ignore[arg-type]


# the settings of a run, and of one client


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> fedal.Run:
    return fedal.run(fedal.Config(**TINY), tmp_path_factory.mktemp("plain") / "run")


NEUTRAL = {"schedule_end": 1.0, "class_weights": (1.0,) * 10, "label_smoothing": 0.0, "clip": 1e9}


def test_neutral_settings_change_nothing_or_next_to_nothing(plain: fedal.Run, tmp_path: Path) -> None:
    config = plain.config.with_(**NEUTRAL, schedule="cosine", schedule_iterations=8)
    found = weights(fedal.run(config, tmp_path / "run"))
    for name, value in weights(plain).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "changed",
    [{"optimizer": "adamw", "weight_decay": 0.1}, {"schedule": "cosine", "schedule_iterations": 4}, {"clip": 1e-3},
     {"class_weights": "balanced"}, {"label_smoothing": 0.2}, {"lr": 1e-2}],
)  # fmt: skip
def test_a_table_changes_its_own_client(changed: dict[str, Any], tmp_path: Path) -> None:
    """With local training, which exchanges nothing, the other client keeps its bits."""
    both = [{"name": "client-00", **changed}, {"name": "client-01"}]
    base = fedal.Config(**{**TINY, "method": "local"})
    alone, other = (
        fedal.run(base.with_(clients=each), tmp_path / name) for name, each in (("a", 2), ("b", both))
    )  # fmt: skip
    assert not same(weights(alone), weights(other)) and same(weights(alone, "client-01"), weights(other, "client-01"))
    whole = fedal.run(base.with_(**changed), tmp_path / "c")
    assert same(weights(whole), weights(other)), "the same setting for the whole run"


def test_contradictions_are_named() -> None:
    with pytest.raises(ConfigError, match="schedule = cosine of a: needs schedule_iterations"):
        fedal.Config(clients=[{"name": "a", "schedule": "cosine"}, {"name": "b"}])
    with pytest.raises(ConfigError, match=r"keep_best = true: .*own_validation"):
        fedal.Config(keep_best=True)
    with pytest.raises(ConfigError, match="schedule is set"):
        fedal.run(fedal.Config(**TINY, stacked=True, schedule="linear", schedule_iterations=4))
    with pytest.raises(ConfigError, match="the federation decides it"):
        own_settings({"tau": 3})
    with pytest.raises(ConfigError, match="--set lr=-1"):
        own_settings({"lr": -1})
    assert own_settings({"lr": 0.1, "class_weights": "balanced"}) == {"lr": 0.1, "class_weights": "balanced"}


# keep_best


class StopEarly(fedal.Callback):
    def should_stop(self) -> bool:
        return True


def test_the_best_model_is_kept_next_to_the_final_one(plain: fedal.Run, tmp_path: Path) -> None:
    config = plain.config.with_(keep_best=True, own_validation=0.3, lr=0.05, rounds=8)
    run = fedal.run(config, tmp_path / "run")
    finals = {row["client"]: row for row in run.client_metrics if row["final"]}
    for client, final in finals.items():
        history = [
            (row["own_validation_accuracy"], -row["iteration"])
            for row in run.client_metrics
            if row["client"] == client and row["phase"] == "after_global" and row["iteration"] and not row["final"]
        ]
        value, iteration = max(history)
        assert (final["best_own_validation_accuracy"], final["best_iteration"]) == (value, -iteration)
    assert {f"{client}.safetensors" for client in finals} == {path.name for path in (run.path / "best").iterdir()}
    assert run.final["best_test_accuracy"] == pytest.approx(
        sum(row["best_test_accuracy"] for row in finals.values()) / 2
    )
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "stopped", callbacks=[StopEarly()])
    fedal.resume(tmp_path / "stopped")
    for path in (run.path / "best").iterdir():
        assert path.read_bytes() == (tmp_path / "stopped/best" / path.name).read_bytes()
    last = json.loads((tmp_path / "stopped/metrics.jsonl").read_text().splitlines()[-1])
    assert last["best_test_accuracy"] == run.final["best_test_accuracy"]


# output adapters


class Returning(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(64, 10), form

    def forward(self, x: Tensor) -> Any:
        f = self.layer(x.flatten(1))
        return {
            "tuple": (f, x),
            "dict": {"logits": f, "hidden": x},
            "one": {"out": f},
            "object": Answer(f),
            "tensor": f,
        }[self.form]


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.loss, self.logits = None, logits


@pytest.mark.parametrize("form", ["tuple", "dict", "one", "object"])
def test_modules_that_return_more_than_logits_train_like_others(form: str, tmp_path: Path) -> None:
    def trained(form: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        models = {name: Returning(form) for name in ("client-00", "client-01")}
        return weights(fedal.run(fedal.Config(**TINY), tmp_path / form, models=models))

    assert same(trained(form), trained("tensor"))


def test_outputs_without_logits_are_refused() -> None:
    with pytest.raises(TypeError, match="no logits in a dict with a, b"):
        logits_of({"a": torch.ones(1), "b": torch.ones(1)})
    with pytest.raises(TypeError, match="no logits in a NoneType"):
        logits_of(None)
