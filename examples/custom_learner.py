"""Bring any kind of model: softmax regression in plain NumPy learns together with a PyTorch network.

python examples/custom_learner.py
"""

import numpy as np

import fedal
from fedal.learners.array_learner import Array, ArrayLearner, Pass


class SoftmaxRegression(ArrayLearner):
    """Two verbs: compute outputs, and step along a gradient w.r.t. them. The rest saves and loads the weights."""

    def __init__(self, n_features: int, n_classes: int, lr: float = 0.1) -> None:
        self.w, self.lr = np.zeros((n_features, n_classes)), lr

    def outputs(self, x: Array) -> Array:
        return np.asarray(x.reshape(len(x), -1) @ self.w)

    def step(self, passes: list[Pass]) -> None:
        for x, _, dlogits in passes:
            self.w -= self.lr * x.reshape(len(x), -1).T @ dlogits

    def arrays(self) -> dict[str, Array]:
        return {"w": self.w}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        self.w = arrays["w"]


if __name__ == "__main__":
    clients = [{"name": "by-hand"}, {"name": "network", "model": "mlp-small"}]
    for method in ("local", "fedal"):
        config = fedal.Config(method=method, dataset="digits", clients=clients, iterations=100, alpha=0.3)
        run = fedal.run(config, f"runs/{method}", models={"by-hand": SoftmaxRegression(64, 10)})
        print(method, {row["client"]: round(row["test_accuracy"], 3) for row in run.client_metrics if row["final"]})
