"""Clients with scikit-learn models, one with partial_fit and one made of trees, next to a PyTorch client.

python examples/sklearn_client.py
In a deployment, with this folder on PYTHONPATH: fedal join --model sklearn_client:make ...
"""

from sklearn.neural_network import MLPRegressor

import fedal
from fedal.learners.sklearn_learner import SklearnLearner
from fedal.learners.tree_learner import TreeLearner


def make() -> SklearnLearner:
    regressor = MLPRegressor(hidden_layer_sizes=(64,), random_state=0)  # predicts logits, not classes
    return SklearnLearner(regressor, n_features=64, n_classes=10)


def main() -> None:
    clients = [{"name": "regressor"}, {"name": "trees"}, {"name": "network", "model": "mlp-small"}]
    for method in ("local", "fedal"):
        trees = TreeLearner(n_features=64, n_classes=10, depth=4, step=0.3, max_trees=300)
        models = {"regressor": make(), "trees": trees}
        config = fedal.Config(method=method, dataset="digits", clients=clients, iterations=100)
        run = fedal.run(config, f"runs/{method}", models=models)
        print(method, {row["client"]: round(row["test_accuracy"], 3) for row in run.client_metrics if row["final"]})
    print(f"{len(trees)} trees, saved as arrays in {run.path}/models/trees.safetensors")


if __name__ == "__main__":
    main()
