"""Texts that several projects share."""

from __future__ import annotations

COMPARISON = """
[comparison]             # `fedal run` trains each site alone too, and says who gained
against = "local"
seeds = 3

[deployment]             # for `fedal serve`; `fedal run` ignores it
federation = "{name}"
"""

DEPLOY = """
In earnest, each site keeps its own file, and the results are the same, bit for bit. On one machine, without
certificates, in four terminals (the other two sites likewise, each with its own model):

    fedal serve --config federation.toml --insecure
    fedal join --server 127.0.0.1:7443 --name north --data {data} --model {model} --schema-file schema.json \\
      --insecure --federation {name} --save north.safetensors
"""

TABLE_MODELS = '''
"""The sites' own models. A factory gets the numbers of encoded columns and of classes. Only its site sees the model."""

from torch import nn

from fedal.learners.tree_learner import TreeLearner


def net(input_shape, n_classes):
    """A small neural network."""
    return nn.Sequential(nn.Linear(input_shape[0], 32), nn.ReLU(), nn.Linear(32, n_classes))


def trees(input_shape, n_classes):
    """Boosted trees. For XGBoost: pip install 'fedal[xgboost]', and model = "xgboost" in federation.toml."""
    return TreeLearner(n_features=input_shape[0], n_classes=n_classes, depth=3, step=0.1, max_trees=500)
'''
