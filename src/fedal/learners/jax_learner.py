"""Any JAX function `apply(params, x)` as a learner, with an optax optimizer. float32 on the CPU.

The output gradient goes through `jax.vjp`. Forward and step are compiled once per batch shape. Learners that share
`apply` and `optimizer` share the compiled code: create both once, outside any loop over clients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fedal.errors import ConfigError
from fedal.learners.array_learner import Array, ArrayLearner, Pass, as_arrays, as_tensors
from fedal.learners.base import State

try:
    import jax
    import optax
except ImportError:
    raise ConfigError("a JAX learner needs jax and optax. Type: pip install 'fedal[jax]'") from None

Params = Any
"""A tree (dicts, lists, tuples) of arrays."""

Apply = Callable[[Params, jax.Array], jax.Array]


class JaxLearner(ArrayLearner):
    """`apply` is a pure function of the parameters and a batch (B, ...), without batch statistics or random layers."""

    def __init__(self, apply: Apply, params: Params, optimizer: optax.GradientTransformation | None = None) -> None:
        self._forward, self._update, self._begin = _compiled(apply, optimizer or _adam())
        self.params = _on_cpu(params)
        self._optimizer_state = _on_cpu(self._begin(self.params))

    def outputs(self, x: Array) -> Array:
        return np.asarray(self._forward(self.params, x))

    def step(self, passes: list[Pass]) -> None:
        inputs, gradients = [one.x for one in passes], [one.dlogits for one in passes]
        self.params, self._optimizer_state = self._update(self.params, self._optimizer_state, inputs, gradients)

    def arrays(self) -> dict[str, Array]:
        return _leaves(self.params)

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        self.params = _filled(self.params, arrays, "parameters")

    def state_dict(self) -> State:
        return {**super().state_dict(), "optimizer": as_tensors(_leaves(self._optimizer_state))}

    def load_state_dict(self, state: State) -> None:
        optimizer_state = _filled(self._optimizer_state, as_arrays(state["optimizer"]), "optimizer state")
        super().load_state_dict(state)
        self._optimizer_state = optimizer_state

    def copy(self) -> Self:
        """JAX arrays are immutable, so the copy shares them."""
        return copy.copy(self)


@lru_cache
def _adam() -> optax.GradientTransformation:
    return optax.adam(1e-3)


@lru_cache(maxsize=64)
def _compiled(apply: Apply, optimizer: optax.GradientTransformation) -> tuple[Any, Any, Any]:
    """The compiled functions: forward, step, and initial optimizer state."""

    def update(params: Params, state: Any, inputs: list[Any], dlogits: list[Any]) -> tuple[Params, Any]:
        # The parameters have not changed since the passes, so recomputing them gives the same graph.
        _, pull_back = jax.vjp(lambda p: [apply(p, x) for x in inputs], params)
        changes, state = optimizer.update(pull_back(dlogits)[0], state, params)
        return optax.apply_updates(params, changes), state

    return jax.jit(apply), jax.jit(update), jax.jit(optimizer.init)


def _on_cpu(tree: Any) -> Any:
    """The tree with its arrays on the CPU: JAX computes where the arrays are."""
    cpu = jax.devices("cpu")[0]
    return jax.tree.map(lambda leaf: jax.device_put(_float32(leaf), cpu), tree)


def _float32(leaf: Any) -> Array:
    array = np.array(leaf)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _leaves(tree: Any) -> dict[str, Array]:
    return {_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _filled(tree: Any, arrays: dict[str, Array], what: str) -> Any:
    """A tree of the same structure, with the values of `arrays`."""
    expected = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(tree).items()}
    if expected != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
        raise ConfigError(f"the saved {what} do not fit this JAX learner: names, shapes or dtypes differ.")
    return _on_cpu(jax.tree_util.tree_map_with_path(lambda path, leaf: arrays[_name(path)], tree))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "params"
