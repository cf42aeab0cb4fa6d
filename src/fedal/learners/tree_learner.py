"""A list of small regression trees as a learner: gradient boosting, one tree per step, stored as plain arrays.

Each step fits a tree to the negative gradients of the batch and adds `step` times its answers to the logits. The list
is capped: a tree beyond `max_trees` takes the place of the oldest one.
"""

from __future__ import annotations

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, ArrayLearner, Pass


class TreeLearner(ArrayLearner):
    """The logits are the sum of the trees' answers. A node is a column: feature, threshold, children, value."""

    def __init__(
        self, n_features: int, n_classes: int, *, depth: int = 4, step: float = 0.3, max_trees: int = 500
    ) -> None:
        for name, number in (("depth", depth), ("step", step), ("max_trees", max_trees)):
            if not number > 0:
                raise ConfigError(f"{name} = {number}: expected a positive number.")
        self._n_features, self._depth, self._step, self._max_trees = n_features, depth, step, max_trees
        self._taken = 0  # steps, which is more than trees once the cap is reached
        nodes = 2 ** (depth + 1) - 1
        self._feature = np.zeros((0, nodes), np.int32)
        self._threshold = np.zeros((0, nodes), np.float64)
        self._children = np.zeros((0, nodes, 2), np.int32)
        self._value = np.zeros((0, nodes, n_classes), np.float32)

    def __len__(self) -> int:
        return len(self._feature)

    def outputs(self, x: Array) -> Array:
        rows = self._rows(x)
        trees, samples = np.arange(len(self))[:, None], np.arange(len(rows))[None, :]
        node = np.zeros((len(self), len(rows)), np.int32)  # of every tree and sample
        for _ in range(self._depth):
            goes_right = rows[samples, self._feature[trees, node]] > self._threshold[trees, node]
            node = self._children[trees, node, goes_right.astype(np.int32)]
        total: Array = self._value[trees, node].sum(0)
        return total

    def step(self, passes: list[Pass]) -> None:
        x = np.concatenate([self._rows(one.x) for one in passes])
        residuals = -len(x) * np.concatenate([one.dlogits for one in passes])  # of each sample's own loss
        tree = DecisionTreeRegressor(max_depth=self._depth, random_state=self._taken % 2**32).fit(x, residuals).tree_
        n, nodes = tree.node_count, self._feature.shape[1]
        is_leaf = tree.children_left < 0
        itself = np.arange(n)  # a leaf leads to itself: whoever arrives early stays
        feature, threshold = np.zeros(nodes, np.int32), np.zeros(nodes)
        children, value = np.zeros((nodes, 2), np.int32), np.zeros(self._value.shape[1:], np.float32)
        feature[:n], threshold[:n] = np.where(is_leaf, 0, tree.feature), np.where(is_leaf, 0.0, tree.threshold)
        children[:n, 0] = np.where(is_leaf, itself, tree.children_left)
        children[:n, 1] = np.where(is_leaf, itself, tree.children_right)
        value[:n] = self._step * tree.value[:, :, 0]
        self._feature, self._threshold = self._with(self._feature, feature), self._with(self._threshold, threshold)
        self._children, self._value = self._with(self._children, children), self._with(self._value, value)
        self._taken += 1

    def arrays(self) -> dict[str, Array]:
        return {
            "feature": self._feature,
            "threshold": self._threshold,
            "children": self._children,
            "value": self._value,
            "taken": np.array(self._taken),
        }

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        nodes = self._feature.shape[1]
        trees = len(arrays["feature"])
        expected = [(trees, nodes), (trees, nodes), (trees, nodes, 2), (trees, *self._value.shape[1:])]
        found = [arrays[name].shape for name in ("feature", "threshold", "children", "value")]
        in_range = [(arrays["feature"], self._n_features), (arrays["children"], nodes)]
        if found != expected or not all(((a >= 0) & (a < limit)).all() for a, limit in in_range):
            raise ConfigError("the saved trees do not fit this learner: other depth, inputs or classes.")
        self._feature, self._threshold = arrays["feature"], arrays["threshold"]
        self._children, self._value = arrays["children"], arrays["value"]
        self._taken = int(arrays["taken"])

    def _rows(self, x: Array) -> Array:
        rows = x.reshape(len(x), -1)
        if rows.shape[1] != self._n_features:
            raise ConfigError(f"samples have {rows.shape[1]} numbers; this learner was made for {self._n_features}.")
        return rows

    def _with(self, trees: Array, new: Array) -> Array:
        """The newest `max_trees` of the list with one more."""
        return np.concatenate([trees[max(0, len(trees) + 1 - self._max_trees) :], new[None]])
