"""One small learner per framework, newly created with the same weights at every call, and data to train on."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.linear_model import SGDRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPRegressor
from torch import Tensor

from fedal.learners.array_learner import Array
from fedal.learners.base import Learner
from fedal.learners.sklearn_learner import SklearnLearner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.learners.tree_learner import TreeLearner
from fedal.losses import d_cross_entropy
from fedal.models.small import SmallMLP
from fedal.seeding import torch_seeded
from optional import needs
from splits import synthetic_images

AnyLearner = TypeVar("AnyLearner", bound=Learner)
Make = Callable[..., Learner]
"""(n_features, n_classes, seed) -> a learner."""

EXAMPLES = Path(__file__).parent.parent / "examples"


def in_torch(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    with torch_seeded(seed, "test"):
        return TorchLearner(SmallMLP((n_features,), n_classes), TorchSettings(lr=3e-3))


def weights(n_features: int, n_classes: int, seed: int = 0, width: int = 32) -> dict[str, dict[str, Array]]:
    generator = np.random.Generator(np.random.Philox(key=seed))
    shapes = {"hidden": (n_features, width), "answer": (width, n_classes)}
    return {
        name: {"w": generator.normal(size=shape) / np.sqrt(shape[0]), "b": np.zeros(shape[1])}
        for name, shape in shapes.items()
    }


@cache
def apply_function() -> Callable[[Any, Any], Any]:
    """The forward function of the JAX network: one object, so that all learners share its compiled code."""
    jnp = needs("jax.numpy", "jax")

    def apply(params: Any, x: Any) -> Any:
        hidden = jnp.tanh(x.reshape(len(x), -1) @ params["hidden"]["w"] + params["hidden"]["b"])
        return hidden @ params["answer"]["w"] + params["answer"]["b"]

    return apply


@cache
def adam() -> Any:
    return needs("optax", "jax").adam(3e-3)


def in_jax(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    optimizer = adam()
    from fedal.learners.jax_learner import JaxLearner

    return JaxLearner(apply_function(), weights(n_features, n_classes, seed), optimizer)


def regressor(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    net = MLPRegressor(hidden_layer_sizes=(32,), random_state=seed, learning_rate_init=3e-3)
    return SklearnLearner(net, n_features, n_classes)


def linear_regressors(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    return SklearnLearner(MultiOutputRegressor(SGDRegressor(random_state=seed)), n_features, n_classes)


def trees(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    return TreeLearner(n_features, n_classes, max_trees=200)


def by_hand(n_features: int = 16, n_classes: int = 3, seed: int = 0) -> Learner:
    learner: Learner = runpy.run_path(str(EXAMPLES / "custom_learner.py"))["SoftmaxRegression"](n_features, n_classes)
    return learner


FRAMEWORKS: dict[str, Make] = {
    "torch": in_torch,
    "jax": in_jax,
    "scikit-learn net": regressor,
    "scikit-learn linear": linear_regressors,
    "scikit-learn trees": trees,
    "numpy": by_hand,
}


def batch(number: int = 0, n: int = 8) -> tuple[Tensor, Tensor]:
    x, y = synthetic_images()
    chosen = slice(number * n, (number + 1) * n)
    return torch.from_numpy(x[chosen].copy()), torch.from_numpy(y[chosen].copy())


def train(learner: AnyLearner, steps: range) -> AnyLearner:
    """Takes one step on each of these batches."""
    for number in steps:
        x, y = batch(number)
        learner.learn(d_cross_entropy(learner.logits(x), y))
    return learner
