"""Learners outside PyTorch: what each approximates and refuses, and how a run saves it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LinearRegression, SGDRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.tree import DecisionTreeRegressor
from torch import nn

import fedal
from fedal.errors import ConfigError, FedalError
from fedal.learners.sklearn_learner import SklearnLearner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.learners.tree_learner import TreeLearner
from fedal.losses import d_cross_entropy
from frameworks import FRAMEWORKS, Make, apply_function, batch, by_hand, in_jax, train, weights
from optional import needs
from splits import same_bits, synthetic_images

ARRAYS = {name: make for name, make in FRAMEWORKS.items() if name != "torch"}


def torch_twin(of: dict[str, dict[str, Any]], settings: TorchSettings) -> TorchLearner:
    """The same network with the same weights in PyTorch, float64."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3))
    for layer, name in ((net[1], "hidden"), (net[3], "answer")):
        layer.weight.data = torch.as_tensor(of[name]["w"].T.copy(), dtype=torch.float32)
        layer.bias.data = torch.as_tensor(of[name]["b"], dtype=torch.float32)
    return TorchLearner(net, settings)


@pytest.mark.parametrize("make", ARRAYS.values(), ids=list(ARRAYS))
def test_a_pending_pass_keeps_its_own_copy_of_the_inputs(make: Make) -> None:
    learner, other, (x, y) = make(), make(), batch()
    f, g = learner.logits(x), other.logits(x.clone())
    x.zero_()
    learner.learn(d_cross_entropy(f, y))
    other.learn(d_cross_entropy(g, y))
    assert same_bits(learner.state_dict(), other.state_dict())


@pytest.mark.parametrize("make", ARRAYS.values(), ids=list(ARRAYS))
def test_a_gradient_of_another_shape_is_refused(make: Make) -> None:
    learner = make()
    learner.logits(batch()[0])
    with pytest.raises(ValueError, match=r"shape \(8, 2\)"):
        learner.learn(torch.zeros(8, 2))


@pytest.mark.parametrize("make", ARRAYS.values(), ids=list(ARRAYS))
def test_double_precision_inputs_give_double_precision_outputs(make: Make) -> None:
    assert make().logits(batch()[0].double()).dtype is torch.float64


# JAX


def test_a_jax_learner_takes_the_same_steps_as_the_same_net_in_torch() -> None:
    learner, twin = in_jax(), torch_twin(weights(16, 3), TorchSettings(lr=3e-3))
    for number in range(4):
        train(learner, range(number, number + 1))
        train(twin, range(number, number + 1))
        x, _ = batch(9)
        torch.testing.assert_close(learner.predict(x), twin.predict(x), rtol=0, atol=2e-5)


def test_jax_learners_with_the_same_function_and_optimizer_are_compiled_once() -> None:
    optax = needs("optax", "jax")
    from fedal.learners.jax_learner import JaxLearner

    traced = []

    def apply(params: Any, x: Any) -> Any:
        traced.append(x.shape)
        return apply_function()(params, x)

    optimizer = optax.sgd(0.1)
    for seed in range(3):
        train(JaxLearner(apply, weights(16, 3, seed), optimizer), range(4))
    assert traced == [(8, 1, 4, 4)] * 2  # the forward and the step


def test_jax_parameters_are_saved_under_the_names_of_the_tree() -> None:
    assert in_jax().state_dict()["model"].keys() == {"hidden.w", "hidden.b", "answer.w", "answer.b"}


def test_a_state_of_another_jax_net_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        in_jax(16, 3).load_state_dict(in_jax(16, 4).state_dict())


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "fedal.learners.jax_learner", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'fedal\[jax\]'"):
        importlib.import_module("fedal.learners.jax_learner")


# scikit-learn regressors


def test_a_scikit_learn_net_with_step_1_descends_exactly() -> None:
    """As docs/learners.md states for MLPRegressor: the gradient of its squared error is the gradient it was given."""
    settings = dict(hidden_layer_sizes=(32,), activation="tanh", alpha=0.0, random_state=0)
    net = MLPRegressor(**settings, solver="sgd", momentum=0.0, learning_rate_init=0.1)
    learner = SklearnLearner(net, 16, 3)
    (w, v), (b, c) = learner.regressor.coefs_, learner.regressor.intercepts_
    twin = torch_twin({"hidden": {"w": w, "b": b}, "answer": {"w": v, "b": c}}, TorchSettings("sgd", lr=0.1))
    train(learner, range(4))
    train(twin, range(4))
    x, _ = batch(9)
    torch.testing.assert_close(learner.predict(x), twin.predict(x), rtol=0, atol=2e-5)


def test_a_fitted_regressor_keeps_its_fit_and_the_callers_is_unchanged() -> None:
    x, y = synthetic_images()
    fitted = MLPRegressor(hidden_layer_sizes=(8,), random_state=0).partial_fit(x.reshape(len(x), -1), np.eye(3)[y])
    before = fitted.predict(x.reshape(len(x), -1))
    learner = SklearnLearner(fitted, 16, 3)
    np.testing.assert_allclose(learner.predict(torch.from_numpy(x)).numpy(), before, atol=1e-6)
    train(learner, range(3))
    np.testing.assert_array_equal(fitted.predict(x.reshape(len(x), -1)), before)


def test_the_state_of_a_regressor_does_not_grow() -> None:
    learner = FRAMEWORKS["scikit-learn net"]()
    sizes = [
        {name: value.shape for name, value in train(learner, range(n)).state_dict()["model"].items()} for n in (2, 9)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("regressor", "problem"),
    [
        (LinearRegression(), "has no partial_fit"),
        (MLPRegressor(), "random_state=0"),
        (MultiOutputRegressor(SGDRegressor()), "estimator__random_state=0"),
        (MultiOutputRegressor(SGDRegressor(random_state=0, average=True)), "cannot be saved"),
        (MLPRegressor(hidden_layer_sizes=(4,), random_state=0).partial_fit(np.eye(16), np.ones((16, 5))), r"\(1, 5\)"),
    ],
)
def test_a_regressor_that_cannot_take_part_is_refused(regressor: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SklearnLearner(regressor, 16, 3)


def test_a_step_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="step = 0"):
        SklearnLearner(MLPRegressor(random_state=0), 16, 3, step=0)
    with pytest.raises(ConfigError, match="max_trees = 0"):
        TreeLearner(16, 3, max_trees=0)


def test_a_state_of_another_regressor_is_refused() -> None:
    wide = SklearnLearner(MLPRegressor(hidden_layer_sizes=(9,), random_state=0), 16, 3)
    with pytest.raises(ConfigError, match="do not fit"):
        FRAMEWORKS["scikit-learn net"]().load_state_dict(wide.state_dict())


# trees


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_the_arrays_of_a_tree_predict_like_scikit_learn(depth: int) -> None:
    learner, (x, y) = TreeLearner(16, 3, depth=depth, step=1.0), batch(0, 40)
    f = learner.logits(x)
    gradient = d_cross_entropy(f, y)
    learner.learn(gradient)
    tree = DecisionTreeRegressor(max_depth=depth, random_state=0).fit(x.flatten(1), -40 * gradient)
    unseen = torch.from_numpy(synthetic_images(seed=5)[0])
    np.testing.assert_allclose(learner.predict(unseen).numpy(), tree.predict(unseen.flatten(1)), atol=1e-6)


def test_a_tree_beyond_the_cap_replaces_the_oldest() -> None:
    capped, free, (x, _) = TreeLearner(16, 3, max_trees=5), TreeLearner(16, 3), batch(9)
    train(capped, range(5))
    train(free, range(5))
    assert same_bits(capped.state_dict(), free.state_dict())
    before = capped.state_dict()["model"]
    train(capped, range(5, 6))
    after = capped.state_dict()["model"]
    assert len(capped) == 5 and int(after["taken"]) == 6
    assert torch.equal(after["value"][:4], before["value"][1:])
    assert torch.isfinite(capped.predict(x)).all()


def test_an_empty_list_of_trees_predicts_zero() -> None:
    assert TreeLearner(16, 3).predict(batch()[0]).eq(0).all()


@pytest.mark.parametrize(("name", "value"), [("feature", 16), ("feature", -1), ("children", 31)])
def test_trees_with_indices_out_of_range_are_refused(name: str, value: int) -> None:
    state = train(TreeLearner(16, 3), range(2)).state_dict()
    state["model"][name].view(-1)[0] = value
    with pytest.raises(ConfigError, match="do not fit"):
        TreeLearner(16, 3).load_state_dict(state)


# in a run


def tiny(**settings: Any) -> fedal.Config:
    clients = [{"name": "own"}, {"name": "other", "model": "mlp-small"}]
    return fedal.Config(dataset="digits", clients=clients, iterations=4, eval_every=4, tau=2, **settings)


def test_the_arrays_of_every_learner_type_are_exported_and_can_be_loaded(tmp_path: Path) -> None:
    learner = by_hand(64, 10)
    run = fedal.run(tiny(), tmp_path / "run", models={"own": learner})
    assert load_file(run.path / "models/own.safetensors")["w"].shape == (64, 10)
    assert (run.path / "models/other.safetensors").exists()
    again = fedal.load_run(run.path, models={"own": by_hand(64, 10)})
    assert same_bits(again.learner("own").state_dict(), learner.state_dict())
    assert isinstance(again.model("other"), nn.Module)


def test_a_run_explains_how_to_load_a_model_that_is_not_a_module(tmp_path: Path) -> None:
    run = fedal.run(tiny(), tmp_path / "run", models={"own": by_hand(64, 10)})
    with pytest.raises(FedalError, match=r'run\.learner\("own"\)'):
        run.model("own")
    with pytest.raises(FedalError, match=r'run\.model\("other"\)'):
        run.learner("other")
    with pytest.raises(FedalError, match="no client"):
        run.learner("nobody")
    with pytest.raises(FedalError, match="models="):
        fedal.load_run(run.path).model("own")


def test_double_precision_runs_accept_single_precision_learners(tmp_path: Path) -> None:
    run = fedal.run(tiny(precision="fp64"), tmp_path / "run", models={"own": TreeLearner(64, 10)})
    assert run.is_complete


def test_an_object_without_the_verbs_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MLPRegressor without logits, learn"):
        fedal.run(tiny(), tmp_path / "run", models={"own": MLPRegressor()})  # type: ignore[dict-item]
    assert not (tmp_path / "run").exists()
