"""XGBoost as a learner: it goes on from a fitted booster, one step per stage. See `boosted` for what a step is."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, Pass
from fedal.learners.boosted import BoostedLearner

BINARY = ("binary:logistic", "binary:logitraw")
MULTICLASS = ("multi:softprob", "multi:softmax")


class XGBoostLearner(BoostedLearner):
    """Wraps a copy of a fitted `Booster` or `XGBClassifier`, or starts without trees if none is given.

    `step`, `depth`, `min_child_weight` and `l2` are those of the federation's trees, whatever the owner's were made
    with. `per="batch"` takes a step in every `learn`, instead of one per stage.
    """

    def __init__(
        self,
        booster: Any = None,
        *,
        n_features: int,
        n_classes: int,
        step: float = 0.3,
        depth: int = 4,
        min_child_weight: float = 1.0,
        l2: float = 1.0,
        max_steps: int = 1000,
        per: Literal["stage", "batch"] = "stage",
    ) -> None:
        self._xgboost = _library()
        super().__init__(n_features, n_classes, max_steps)
        for name, number in (("step", step), ("depth", depth)):
            if not number > 0:
                raise ConfigError(f"{name} = {number}: expected a positive number.")
        self._per = per
        self._parameters = {
            "learning_rate": step, "max_depth": depth, "min_child_weight": min_child_weight, "reg_lambda": l2,
            "tree_method": "hist", "nthread": 1, "seed": 0, "verbosity": 0,
        }  # fmt: skip
        self._booster = self._fresh() if booster is None else self._owned(booster)
        self._owner_steps = int(self._booster.num_boosted_rounds())

    def margins(self, x: Array) -> Array:
        return np.asarray(self._booster.inplace_predict(x, predict_type="margin", validate_features=False))

    def step(self, passes: list[Pass]) -> None:
        super().step(passes)
        if self._per == "batch":
            self.end_stage()

    def boost(self, x: Array, gradients: Array, hessians: Array) -> None:
        booster = self._loaded(self.to_bytes())
        names, types = booster.feature_names, booster.feature_types
        data = self._xgboost.DMatrix(x, feature_names=names, feature_types=types, nthread=1)
        booster.boost(data, booster.num_boosted_rounds(), grad=gradients, hess=hessians)
        if booster.num_boosted_rounds() > self._owner_steps + self._max_steps:
            booster = self._loaded(_without_step(bytes(booster.save_raw("json")), self._owner_steps))
        self._booster = booster

    def to_bytes(self) -> bytes:
        return bytes(self._booster.save_raw("ubj"))

    def from_bytes(self, content: bytes) -> None:
        booster = self._loaded(content)
        self._refuse_misfit(booster)
        if int(booster.num_boosted_rounds()) < self._owner_steps:
            raise ConfigError("the saved booster does not fit this learner: it lacks trees of the owner.")
        self._booster = booster

    def _fresh(self) -> Any:
        kind = {"objective": "binary:logistic"} if self.is_binary else {"objective": "multi:softprob"}
        classes = {} if self.is_binary else {"num_class": self._n_classes}
        one_row = self._xgboost.DMatrix(np.zeros((1, self._n_features), np.float32), nthread=1)
        booster = self._xgboost.Booster({**self._parameters, **kind, **classes, "base_score": 0.5}, [one_row])
        return self._loaded(bytes(booster.save_raw("ubj")))

    def _owned(self, fitted: Any) -> Any:
        """A copy of the owner's booster; after early stopping, up to its best step, as the library predicts."""
        booster = fitted.get_booster() if hasattr(fitted, "get_booster") else fitted
        if not isinstance(booster, self._xgboost.Booster):
            raise ConfigError(
                f"{type(fitted).__name__}: expected a fitted xgboost.Booster or XGBClassifier, or nothing to start "
                "without trees."
            )
        best = booster.attr("best_iteration")
        copied = self._loaded(bytes((booster if best is None else booster[: int(best) + 1]).save_raw("ubj")))
        self._refuse_misfit(copied)
        return copied

    def _loaded(self, content: bytes) -> Any:
        booster = self._xgboost.Booster()
        booster.load_model(bytearray(content))
        booster.set_param(self._parameters)
        return booster

    def _refuse_misfit(self, booster: Any) -> None:
        learner = json.loads(bytes(booster.save_raw("json")))["learner"]
        trees, objective = learner["gradient_booster"], learner["objective"]["name"]
        expected = BINARY if self.is_binary else MULTICLASS
        if trees["name"] != "gbtree":
            raise ConfigError(f"the booster is a {trees['name']}; expected gbtree, whose trees can be added to.")
        if objective not in expected:
            raise ConfigError(
                f"the booster's objective is {objective}; with {self._n_classes} classes expected "
                f"{' or '.join(expected)}."
            )
        found = int(learner["learner_model_param"]["num_class"]) or 2
        if found != self._n_classes:
            raise ConfigError(f"the booster has {found} classes; this federation has {self._n_classes}.")
        if booster.num_features() != self._n_features:
            raise ConfigError(
                f"the booster takes {booster.num_features()} columns; this federation has {self._n_features}. Fit it "
                "on the columns of the federation's schema."
            )
        if int(trees["model"]["gbtree_model_param"]["num_parallel_tree"]) != 1 or "c" in (booster.feature_types or []):
            raise ConfigError(
                "the booster has parallel trees or categorical columns; expected one tree per step and class."
            )


def _without_step(model: bytes, first: int) -> bytes:
    """The model without the boosting step `first`."""
    found = json.loads(model)
    trees = found["learner"]["gradient_booster"]["model"]
    bounds = trees["iteration_indptr"]
    begin, end = bounds[first], bounds[first + 1]
    del trees["trees"][begin:end], trees["tree_info"][begin:end]
    for place, tree in enumerate(trees["trees"]):
        tree["id"] = place
    trees["iteration_indptr"] = [*bounds[: first + 1], *(bound - (end - begin) for bound in bounds[first + 2 :])]
    trees["gbtree_model_param"]["num_trees"] = str(len(trees["trees"]))
    return json.dumps(found).encode()


def _library() -> Any:
    try:
        import xgboost
    except ImportError:
        raise ConfigError("an XGBoost learner needs xgboost. Type: pip install 'fedal[xgboost]'") from None
    return xgboost


def make(input_shape: tuple[int, ...], n_classes: int) -> XGBoostLearner:
    """The model `xgboost`: without trees of an owner."""
    return XGBoostLearner(n_features=int(np.prod(input_shape)), n_classes=n_classes)
