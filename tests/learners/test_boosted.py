"""Boosted trees as learners: the Newton step by hand, the owner's trees, the cap, the stages, the saved bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedal
from fedal.engine.player import LocalPlayer
from fedal.errors import ConfigError, Stopped
from fedal.learners.boosted import BoostedLearner
from fedal.losses import d_cross_entropy
from fedal.methods.client import ClientLogic
from fedal.records.checkpoint import load_newest, save_checkpoint
from optional import needs
from splits import same_bits

xgboost, lightgbm = needs("xgboost", "xgboost"), needs("lightgbm", "lightgbm")

from fedal.learners.lightgbm_learner import LightGBMLearner  # noqa: E402
from fedal.learners.xgboost_learner import XGBoostLearner  # noqa: E402

Make = Callable[..., BoostedLearner]
LIBRARIES: dict[str, Make] = {"xgboost": XGBoostLearner, "lightgbm": LightGBMLearner}
both = pytest.mark.parametrize("make", LIBRARIES.values(), ids=list(LIBRARIES))


def samples(n: int = 96, n_classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator) + 2 * torch.eye(4)[y], y


def stage(learner: BoostedLearner, number: int, n_classes: int = 3, batches: int = 3) -> None:
    x, y = samples(32 * batches, n_classes, seed=number)
    for part, labels in zip(x.split(32), y.split(32), strict=True):
        learner.learn(d_cross_entropy(learner.logits(part), labels))
    learner.end_stage()


def fitted(make: Make, n_classes: int) -> Any:
    x, y = (part.numpy() for part in samples(200, n_classes, seed=99))
    if make is XGBoostLearner:
        return xgboost.XGBClassifier(n_estimators=5, max_depth=2, n_jobs=1).fit(x, y)
    return lightgbm.LGBMClassifier(n_estimators=5, num_leaves=4, n_jobs=1, verbosity=-1).fit(x, y)


@both
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_leaf_is_a_newton_step(make: Make, n_classes: int) -> None:
    """Two kinds of inputs make two leaves: each is -sum(g) / (sum(h) + l2) of its samples, times the step size."""
    learner = make(n_features=4, n_classes=n_classes, step=0.5, l2=2.0, min_child_weight=0.0)
    x = torch.zeros(32, 4)
    x[16:, 0] = 1
    y = torch.tensor([0] * 14 + [1] * 2 + [0] * 3 + [1] * 13)
    f = learner.logits(x)
    learner.learn(d_cross_entropy(f, y))
    assert same_bits(learner.predict(x), f), "nothing changes before the end of the stage"
    learner.end_stage()
    moved, p = learner.predict(x) - f, 1 / n_classes
    for row, zeros in ((0, 14), (16, 3)):
        counts = torch.tensor([zeros, 16 - zeros, 0.0])[:n_classes]
        leaves = 0.5 * -(16 * p - counts) / (16 * p * (1 - p) + 2)
        expected = torch.stack([-leaves[1] / 2, leaves[1] / 2]) if n_classes == 2 else leaves
        split = expected[:2]  # no sample is of the third class: nothing to split there
        torch.testing.assert_close(moved[row][:2], split, rtol=1e-5, atol=1e-6)


@both
def test_the_batches_of_a_stage_are_one_step(make: Make) -> None:
    apart, together = make(n_features=4, n_classes=3), make(n_features=4, n_classes=3)
    stage(apart, 0)
    stage(apart, 1)
    for number in (0, 1):
        x, y = samples(96, 3, seed=number)
        together.learn(d_cross_entropy(together.logits(x), y))
        together.end_stage()
    assert torch.allclose(apart.predict(samples()[0]), together.predict(samples()[0]), atol=1e-5)
    before = apart.state_dict()
    apart.end_stage()
    assert same_bits(apart.state_dict(), before), "a stage without gradients adds no tree"


@both
@pytest.mark.parametrize("n_classes", [2, 3])
def test_it_goes_on_from_the_owner_s_booster(make: Make, n_classes: int) -> None:
    owner = fitted(make, n_classes)
    x, y = samples(64, n_classes, seed=5)
    learner = make(owner, n_features=4, n_classes=n_classes)
    np.testing.assert_allclose(
        torch.softmax(learner.predict(x), -1), owner.predict_proba(x.numpy()), rtol=1e-4, atol=1e-6
    )
    loss = torch.nn.functional.cross_entropy
    before = loss(learner.predict(x), y)
    for _ in range(3):
        learner.learn(d_cross_entropy(learner.logits(x), y))
        learner.end_stage()
    assert loss(learner.predict(x), y) < 0.9 * before
    np.testing.assert_array_equal(owner.predict_proba(x.numpy()), fitted(make, n_classes).predict_proba(x.numpy()))


@both
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_cap_drops_the_federation_s_oldest_step_and_never_the_owner_s(make: Make, n_classes: int) -> None:
    owner, (x, _) = fitted(make, n_classes), samples(40, n_classes, seed=5)
    capped = make(owner, n_features=4, n_classes=n_classes, max_steps=2)
    contributions = []
    for number in range(4):
        before = capped.copy()
        before._max_steps = 100  # the same step, and nothing is dropped
        stage(before, number, n_classes)
        contributions.append(before.predict(x) - capped.predict(x))
        stage(capped, number, n_classes)
    first = make(owner, n_features=4, n_classes=n_classes).predict(x)
    torch.testing.assert_close(capped.predict(x), first + contributions[2] + contributions[3], rtol=1e-4, atol=1e-4)
    again = make(owner, n_features=4, n_classes=n_classes, max_steps=2)
    again.load_state_dict(capped.state_dict())
    stage(again, 9, n_classes)
    stage(capped, 9, n_classes)
    assert same_bits(again.state_dict(), capped.state_dict())


@both
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_state_is_a_model_of_the_library(make: Make, n_classes: int, tmp_path: Path) -> None:
    learner, (x, _) = make(fitted(make, n_classes), n_features=4, n_classes=n_classes), samples(20, n_classes)
    stage(learner, 0, n_classes)
    content = learner.state_dict()["model"]["booster"].numpy().tobytes()
    assert content == learner.to_bytes()
    if make is XGBoostLearner:
        plain = xgboost.Booster()
        plain.load_model(bytearray(content))
        found = plain.predict(xgboost.DMatrix(x.numpy()))
    else:
        (tmp_path / "model.txt").write_bytes(content)
        found = lightgbm.Booster(model_file=str(tmp_path / "model.txt")).predict(x.numpy())
    expected = torch.softmax(learner.predict(x), -1).numpy()
    np.testing.assert_allclose(found, expected[:, 1] if n_classes == 2 else expected, rtol=1e-4, atol=1e-6)


@both
def test_a_state_saved_within_a_stage_continues_with_the_same_bytes(make: Make, tmp_path: Path) -> None:
    learner, other = make(n_features=4, n_classes=3), make(n_features=4, n_classes=3)
    stage(learner, 0)
    x, y = samples(32, seed=7)
    learner.learn(d_cross_entropy(learner.logits(x), y))
    save_checkpoint(tmp_path, 1, {"learner": learner.state_dict()})
    found = load_newest(tmp_path, warn=lambda text: None)
    assert found is not None
    other.load_state_dict(found[1]["learner"])
    for each in (learner, other):
        each.end_stage()
        stage(each, 2)
    assert same_bits(learner.state_dict(), other.state_dict())


@both
def test_an_anchor_keeps_its_model(make: Make) -> None:
    learner, (x, _) = make(n_features=4, n_classes=3), samples()
    stage(learner, 0)
    anchor, before = learner.frozen(), learner.predict(x)
    stage(learner, 1)
    assert same_bits(anchor(x), before) and not same_bits(learner.predict(x), before)


@both
def test_boosters_that_do_not_fit_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="takes 4 columns; this federation has 5"):
        make(fitted(make, 3), n_features=5, n_classes=3)
    with pytest.raises(ConfigError, match="objective is"):
        make(fitted(make, 3), n_features=4, n_classes=2)
    with pytest.raises(ConfigError, match="3 classes; this federation has 4"):
        make(fitted(make, 3), n_features=4, n_classes=4)
    with pytest.raises(ConfigError, match=r"expected a fitted .*\.Booster"):
        make("model.json", n_features=4, n_classes=2)
    with pytest.raises(ConfigError, match="4 numbers; this learner was made for 3"):
        make(n_features=3, n_classes=2).predict(samples()[0])
    with pytest.raises(ConfigError, match="max_steps"):
        make(n_features=3, n_classes=2, max_steps=0)


def test_a_booster_stopped_early_is_used_up_to_its_best_step() -> None:
    x, y = (part.numpy() for part in samples(60, 2, seed=1))
    other = samples(60, 2, seed=2)
    owner = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=2, n_jobs=1, learning_rate=1.0)
    owner.fit(x, y, eval_set=[(other[0].numpy(), 1 - other[1].numpy())], verbose=False)
    assert owner.best_iteration == 0 and owner.get_booster().num_boosted_rounds() > 1
    found = torch.softmax(XGBoostLearner(owner, n_features=4, n_classes=2).predict(other[0]), -1)
    np.testing.assert_allclose(found, owner.predict_proba(other[0].numpy()), rtol=1e-5)


class Collecting:
    """Counts the ends of stages; stands in for a learner."""

    def __init__(self) -> None:
        self.ended = 0

    def forget(self) -> None: ...

    def end_stage(self) -> None:
        self.ended += 1


def test_a_player_ends_the_stage_of_a_method_with_loops_of_its_own() -> None:
    class Logic(ClientLogic):
        client_id = "anna"
        observed: dict[str, Any]

        def __init__(self) -> None:
            self.learner: Any = Collecting()

        def round(self, t: int) -> Any:
            yield from ()

    player = LocalPlayer(Logic())
    player.begin(0)
    assert player.take() is None and player.logic.learner.ended == 1
    player.begin(1)
    player.forget()
    assert player.logic.learner.ended == 2, "a client that misses an exchange keeps what it has learned"


class StopEarly(fedal.Callback):
    def should_stop(self) -> bool:
        return True


@pytest.fixture(scope="module")
def config() -> fedal.Config:
    clients = [{"name": name, "model": name} for name in ("xgboost", "lightgbm")] + [
        {"name": "net", "model": "mlp-small"}
    ]
    return fedal.Config(
        method="fedal", clients=clients, rounds=4, tau=2, batch_size=16, eval_every=4, eval_samples=100, workers=2
    )


def test_a_resumed_federation_of_boosters_and_a_net_has_the_same_bytes(config: fedal.Config, tmp_path: Path) -> None:
    whole = fedal.run(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        fedal.run(config, tmp_path / "stopped", callbacks=[StopEarly()])
    fedal.resume(tmp_path / "stopped")
    for path in sorted((tmp_path / "whole/models").iterdir()):
        assert path.read_bytes() == (tmp_path / "stopped/models" / path.name).read_bytes(), path.name
    by_client = {row["client"]: row for row in whole.client_metrics if row["final"]}
    assert min(row["test_accuracy"] for row in by_client.values()) > 0.3
    learner = whole.learner("lightgbm")
    assert isinstance(learner, LightGBMLearner) and learner._steps == 8, "one step per stage, two stages per round"
    with pytest.raises(fedal.FedalError, match=r"run\.learner"):
        whole.model("xgboost")
    assert math.isfinite(float(learner.predict(torch.zeros(1, 64)).sum()))
