"""scikit-learn classifiers as learners: logistic regression exactly, any other as the fixed base of trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from fedal.errors import ConfigError
from fedal.learners.logistic_learner import UNSEEN, LogisticLearner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.learners.tree_learner import TreeLearner
from fedal.losses import d_cross_entropy, d_kl
from splits import same_bits


def samples(n: int = 120, n_classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=generator)
    return 5 + 3 * (torch.randn(n, 4, generator=generator) + torch.eye(4)[y]), y


def fitted(classifier: Any, n_classes: int) -> Any:
    x, y = samples(n_classes=n_classes)
    return classifier.fit(x.numpy(), y.numpy())


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_it_starts_as_the_fitted_classifier_and_returns_one(n_classes: int, scaled: bool) -> None:
    owner = fitted(make_pipeline(StandardScaler(), LogisticRegression()) if scaled else LogisticRegression(), n_classes)
    learner, (x, y) = LogisticLearner(owner, n_features=4, n_classes=n_classes), samples(seed=1, n_classes=n_classes)
    for _ in range(2):
        found = torch.softmax(learner.predict(x), -1)
        np.testing.assert_allclose(found, learner.classifier().predict_proba(x.numpy()), rtol=1e-4, atol=1e-6)
        learner.learn(d_cross_entropy(learner.logits(x), y))
    np.testing.assert_allclose(
        torch.softmax(LogisticLearner(owner, n_features=4, n_classes=n_classes).predict(x), -1),
        owner.predict_proba(x.numpy()), rtol=1e-4, atol=1e-6,
    )  # fmt: skip


def test_its_steps_are_those_of_a_linear_layer_in_torch() -> None:
    """Also along the gradient towards soft targets, and with a penalty, which does not touch the intercept."""
    learner, (x, y) = LogisticLearner(n_features=4, n_classes=3, lr=0.05), samples()
    layer = nn.Linear(4, 3).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    other = TorchLearner(layer, TorchSettings(lr=0.05, fused=False), dtype=torch.float64)
    teacher = torch.randn(120, 3, generator=torch.Generator().manual_seed(3))
    for _ in range(5):
        for each, inputs in ((learner, x), (other, x.double())):
            f = each.logits(inputs)
            each.learn(d_cross_entropy(f, y) + d_kl(teacher.to(f.dtype), f, 2.0))
    torch.testing.assert_close(learner.predict(x).double(), other.predict(x.double()), rtol=1e-4, atol=1e-4)
    penalised = LogisticLearner(fitted(LogisticRegression(), 3), n_features=4, n_classes=3, lr=0.1, l2=10.0)
    before = penalised.arrays()["weights"].copy()
    penalised.learn(torch.zeros_like(penalised.logits(x)))
    after = penalised.arrays()["weights"]
    assert np.array_equal(before[-1], after[-1]) and (np.abs(after[:-1]) < np.abs(before[:-1])).any()


def test_a_class_that_the_owner_never_saw_starts_below_the_others() -> None:
    x, y = samples(n_classes=2)
    learner = LogisticLearner(LogisticRegression().fit(x.numpy(), 2 * y.numpy()), n_features=4, n_classes=3)
    weights = learner.arrays()["weights"]
    assert weights[-1, 1] == pytest.approx(weights[-1, [0, 2]].min() - UNSEEN) and not weights[:-1, 1].any()


def test_the_state_of_a_logistic_learner_is_restored() -> None:
    learner, other, (x, y) = (*(LogisticLearner(n_features=4, n_classes=3) for _ in range(2)), samples())
    for _ in range(3):
        learner.learn(d_cross_entropy(learner.logits(x), y))
    other.load_state_dict(learner.state_dict())
    for each in (learner, other):
        each.learn(d_cross_entropy(each.logits(x), y))
    assert same_bits(learner.state_dict(), other.state_dict())
    with pytest.raises(ConfigError, match="do not fit"):
        LogisticLearner(n_features=5, n_classes=3).load_state_dict(learner.state_dict())


def test_trees_are_added_to_a_fixed_base() -> None:
    owner, (x, y) = fitted(GradientBoostingClassifier(n_estimators=5, random_state=0), 3), samples(seed=2)
    learner = TreeLearner(4, 3, base=make_pipeline(owner))
    np.testing.assert_allclose(torch.softmax(learner.predict(x), -1), owner.predict_proba(x.numpy()), rtol=1e-4)
    loss = nn.functional.cross_entropy
    before = loss(learner.predict(x), y)
    for _ in range(5):
        learner.learn(d_cross_entropy(learner.logits(x), y))
    assert loss(learner.predict(x), y) < before
    again = TreeLearner(4, 3, base=owner)
    again.load_state_dict(learner.state_dict())
    assert same_bits(again.predict(x), learner.predict(x))
    with pytest.raises(ConfigError, match="another base"):
        TreeLearner(4, 3).load_state_dict(learner.state_dict())


def test_classifiers_that_do_not_fit_are_refused() -> None:
    x, y = samples(n_classes=2)
    with pytest.raises(ConfigError, match="Ridge: expected LogisticRegression"):
        LogisticLearner(Ridge(), n_features=4, n_classes=2)
    with pytest.raises(ConfigError, match="takes 4 columns"):
        LogisticLearner(fitted(LogisticRegression(), 2), n_features=5, n_classes=2)
    with pytest.raises(ConfigError, match="classes are no, yes"):
        LogisticLearner(LogisticRegression().fit(x.numpy(), np.array(["no", "yes"])[y]), n_features=4, n_classes=2)
    with pytest.raises(ConfigError, match="with predict_proba"):
        TreeLearner(4, 2, base=Ridge())
    with pytest.raises(ConfigError, match="does not take these inputs"):
        TreeLearner(5, 2, base=fitted(LogisticRegression(), 2))
