"""LightGBM as a learner: it goes on from a fitted booster, one step per stage. See `boosted` for what a step is.

LightGBM's continued training would drop the objective from the model. So a step is trained alone, from the gradients
and Hessians that it needs, and its trees are appended to the model's text, which is LightGBM's own format.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array
from fedal.learners.boosted import BoostedLearner

TREE = re.compile(r"^Tree=\d+\n", re.MULTILINE)
END = "end of trees\n"


class LightGBMLearner(BoostedLearner):
    """Wraps a copy of a fitted `Booster` or `LGBMClassifier`, or starts without trees if none is given.

    `step`, `leaves`, `min_samples`, `min_child_weight` and `l2` are those of the federation's trees, whatever the
    owner's were made with.
    """

    def __init__(
        self, booster: Any = None, *, n_features: int, n_classes: int, step: float = 0.3, leaves: int = 15,
        min_samples: int = 5, min_child_weight: float = 1e-3, l2: float = 1.0, max_steps: int = 1000,
    ) -> None:  # fmt: skip
        self._lightgbm = _library()
        super().__init__(n_features, n_classes, max_steps)
        for name, number, least in (("step", step, 0.0), ("leaves", leaves, 1)):
            if not number > least:
                raise ConfigError(f"{name} = {number}: expected more than {least:g}.")
        self._parameters = {
            "learning_rate": step, "num_leaves": leaves, "min_data_in_leaf": min_samples,
            "min_sum_hessian_in_leaf": min_child_weight, "lambda_l2": l2, "num_class": self._per_step,
            "objective": "none", "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 0,
            "feature_pre_filter": False, "min_data_in_bin": 1, "verbosity": -1,
        }  # fmt: skip
        self._head, self._trees, self._tail = self._fresh() if booster is None else self._owned(booster)
        self._owner_trees = len(self._trees)
        self._booster = self._loaded()

    @property
    def _per_step(self) -> int:
        """Trees per boosting step."""
        return 1 if self.is_binary else self._n_classes

    def margins(self, x: Array) -> Array:
        if not self._trees:
            return np.zeros((len(x), self._per_step))
        return np.asarray(self._booster.predict(x, raw_score=True, num_threads=1))

    def boost(self, x: Array, gradients: Array, hessians: Array) -> None:
        step = self._one_step(x, gradients, hessians)
        kept = [*self._trees[self._owner_trees :], *step][-self._max_steps * self._per_step :]
        self._trees = [*self._trees[: self._owner_trees], *kept]
        self._booster = self._loaded()

    def to_bytes(self) -> bytes:
        return self._text().encode()

    def from_bytes(self, content: bytes) -> None:
        head, trees, tail = _parts(content.decode())
        self._refuse_misfit(head)
        if len(trees) < self._owner_trees:
            raise ConfigError("the saved booster does not fit this learner: it lacks trees of the owner.")
        self._head, self._trees, self._tail = head, trees, tail
        self._booster = self._loaded()

    def _one_step(self, x: Array, gradients: Array, hessians: Array) -> list[str]:
        """The trees of one step, as text. Where nothing can be split there are none, or trees that output 0."""
        if (x == x[:1]).all():
            return []
        data = self._lightgbm.Dataset(x, params=self._parameters)
        booster = self._lightgbm.Booster(self._parameters, data)
        shape = (-1,) if self.is_binary else gradients.shape
        booster.update(fobj=lambda predicted, data: (gradients.reshape(shape), hessians.reshape(shape)))
        return _parts(booster.model_to_string())[1]

    def _fresh(self) -> tuple[str, list[str], str]:
        """A model without trees, which predicts probabilities from them."""
        x = np.zeros((2, self._n_features), np.float32)
        booster = self._lightgbm.Booster(self._parameters, self._lightgbm.Dataset(x, params=self._parameters))
        head, _, _ = _parts(booster.model_to_string())
        objective = "binary sigmoid:1" if self.is_binary else f"multiclass num_class:{self._n_classes}"
        return re.sub(r"^feature_names=", f"objective={objective}\nfeature_names=", head, flags=re.MULTILINE), [], "\n"

    def _owned(self, fitted: Any) -> tuple[str, list[str], str]:
        """A copy of the owner's booster; after early stopping, up to its best step, as the library predicts."""
        booster = getattr(fitted, "booster_", fitted)
        if not isinstance(booster, self._lightgbm.Booster):
            raise ConfigError(
                f"{type(fitted).__name__}: expected a fitted lightgbm.Booster or LGBMClassifier, or nothing to start "
                "without trees."
            )
        best = booster.best_iteration
        head, trees, tail = _parts(booster.model_to_string(num_iteration=best if best > 0 else None))
        self._refuse_misfit(head)
        return head, trees, tail

    def _text(self) -> str:
        """The model with its trees numbered, and their sizes in bytes, by which LightGBM finds them."""
        blocks = [f"Tree={place}\n{tree}" for place, tree in enumerate(self._trees)]
        sizes = " ".join(str(len(block.encode())) for block in blocks)
        head = re.sub(r"^tree_sizes=.*\n", "", self._head, flags=re.MULTILINE).rstrip("\n")
        return f"{head}\ntree_sizes={sizes}\n\n{''.join(blocks)}{END}{self._tail}"

    def _loaded(self) -> Any:
        return self._lightgbm.Booster(model_str=self._text()) if self._trees else None

    def _refuse_misfit(self, head: str) -> None:
        facts = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
        objective, _, options = facts.get("objective", "none").partition(" ")
        expected = "binary" if self.is_binary else "multiclass"
        classes = max(2, int(facts["num_class"]))
        columns = int(facts["max_feature_idx"]) + 1
        if objective != expected or (self.is_binary and "sigmoid:1" not in options.split()):
            raise ConfigError(
                f"the booster's objective is {objective} {options}; with {self._n_classes} classes expected {expected}"
                f"{' sigmoid:1' * self.is_binary}."
            )
        if classes != self._n_classes:
            raise ConfigError(f"the booster has {classes} classes; this federation has {self._n_classes}.")
        if columns != self._n_features:
            raise ConfigError(
                f"the booster takes {columns} columns; this federation has {self._n_features}. Fit it on the columns "
                "of the federation's schema."
            )
        if "average_output" in head:
            raise ConfigError("the booster is a random forest; expected boosted trees, which can be added to.")


def _parts(text: str) -> tuple[str, list[str], str]:
    """The text before the trees, the trees without their numbers, and the text after them."""
    body, _, tail = text.partition(END)
    head, *trees = TREE.split(body)
    return head, trees, tail


def _library() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise ConfigError("a LightGBM learner needs lightgbm. Type: pip install 'fedal[lightgbm]'") from None
    return lightgbm


def make(input_shape: tuple[int, ...], n_classes: int) -> LightGBMLearner:
    """The model `lightgbm`: without trees of an owner."""
    return LightGBMLearner(n_features=int(np.prod(input_shape)), n_classes=n_classes)
