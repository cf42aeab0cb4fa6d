"""A list of small regression trees as a learner: gradient boosting, one tree per step, stored as plain arrays.

Each step fits a tree to the negative gradients of the batch and adds `step` times its outputs to the logits. The list
is capped: a tree beyond `max_trees` replaces the oldest one.

With a `base`, a fitted classifier of scikit-learn, the trees are added to its logits, log p. The base is never changed,
dropped or saved: its owner passes it again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, ArrayLearner, Pass
from fedal.learners.fixed_classifier import FixedClassifier


class TreeLearner(ArrayLearner):
    """The logits are the sum of the trees' outputs. A node is a column: feature, threshold, children, value."""

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        *,
        depth: int = 4,
        step: float = 0.3,
        max_trees: int = 500,
        base: Any = None,
    ) -> None:
        for name, number in (("depth", depth), ("step", step), ("max_trees", max_trees)):
            if not number > 0:
                raise ConfigError(f"{name} = {number}: expected a positive number.")
        self._n_features, self._depth, self._step, self._max_trees = n_features, depth, step, max_trees
        self._base = None if base is None else FixedClassifier(base, n_features, n_classes)
        self._taken = 0  # steps taken: more than trees once the cap is reached
        nodes = 2 ** (depth + 1) - 1
        self._trees: dict[str, Array] = {
            "feature": np.zeros((0, nodes), np.int32),
            "threshold": np.zeros((0, nodes), np.float64),
            "children": np.zeros((0, nodes, 2), np.int32),
            "value": np.zeros((0, nodes, n_classes), np.float32),
        }

    def __len__(self) -> int:
        return len(self._trees["value"])

    def outputs(self, x: Array) -> Array:
        rows = self._rows(x)
        feature, threshold, children, value = self._trees.values()
        trees, samples = np.arange(len(self))[:, None], np.arange(len(rows))[None, :]
        node = np.zeros((len(self), len(rows)), np.int32)  # the current node of every tree and sample
        for _ in range(self._depth):
            goes_right = rows[samples, feature[trees, node]] > threshold[trees, node]
            node = children[trees, node, goes_right.astype(np.int32)]
        total: Array = value[trees, node].sum(0)
        return total if self._base is None else total + self._base.logits(rows)

    def step(self, passes: list[Pass]) -> None:
        x = np.concatenate([self._rows(one.x) for one in passes])
        residuals = -len(x) * np.concatenate([one.dlogits for one in passes])  # of each sample's loss
        tree = DecisionTreeRegressor(max_depth=self._depth, random_state=self._taken % 2**32).fit(x, residuals).tree_
        is_leaf = tree.children_left < 0
        itself = np.arange(tree.node_count)  # a leaf points to itself, so early arrivals stay
        nodes = {
            "feature": np.where(is_leaf, 0, tree.feature),
            "threshold": np.where(is_leaf, 0.0, tree.threshold),
            "children": np.where(is_leaf, itself, (tree.children_left, tree.children_right)).T,
            "value": self._step * tree.value[:, :, 0],
        }
        for name, trees in self._trees.items():
            new = np.zeros((1, *trees.shape[1:]), trees.dtype)
            new[0, : tree.node_count] = nodes[name]
            self._trees[name] = np.concatenate([trees, new])[-self._max_trees :]
        self._taken += 1

    def arrays(self) -> dict[str, Array]:
        base = {} if self._base is None else {"base": self._base.mark}
        return {**self._trees, "taken": np.array(self._taken), **base}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        trees = len(arrays["feature"])
        fit = all(arrays[name].shape == (trees, *own.shape[1:]) for name, own in self._trees.items())
        in_range = [(arrays["feature"], self._n_features), (arrays["children"], self._trees["children"].shape[1])]
        if not fit or not all(((a >= 0) & (a < limit)).all() for a, limit in in_range):
            raise ConfigError("the saved trees do not fit this learner: depth, inputs or classes differ.")
        mark = np.zeros(0) if self._base is None else self._base.mark
        if not np.array_equal(arrays.get("base", np.zeros(0)), mark):
            raise ConfigError(
                "the saved trees were added to another base: pass the classifier that the run started with."
            )
        self._trees = {name: arrays[name] for name in self._trees}
        self._taken = int(arrays["taken"])

    def _rows(self, x: Array) -> Array:
        rows = x.reshape(len(x), -1)
        if rows.shape[1] != self._n_features:
            raise ConfigError(f"samples have {rows.shape[1]} numbers; this learner was made for {self._n_features}.")
        return rows
