"""Expected losses: of a client on its own data and on global data, and of one model trained on the pooled data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedal.config import Config
from fedal.data.split import DataSplit
from fedal.learners.base import Learner
from fedal.learners.torch_learner import TorchLearner, TorchSettings
from fedal.losses import cross_entropy, d_cross_entropy
from fedal.metrics import EVALUATION_BATCH
from fedal.models import build, largest
from fedal.precision import dtype_of
from fedal.seeding import BatchStream, torch_seeded

REFERENCE_BATCH = 128


def risk(learner: Learner, x: Tensor, y: Tensor) -> float:
    """Mean cross-entropy in evaluation mode, in nats."""
    total = 0.0
    for inputs, labels in zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True):
        total += float(cross_entropy(learner.predict(inputs), labels).value) * len(labels)
    return total / len(y)


def train_reference(config: Config, split: DataSplit, steps: int) -> TorchLearner:
    """An approximation of f*, the model with the least loss on the pooled data: the largest candidate, trained on it.

    Any model yields an upper estimate of lambda_n; a better trained one yields a smaller estimate.
    """
    data = split.dataset
    name = largest(split.task.candidates, data.sample_shape, data.n_classes)
    with torch_seeded(config.seed, "weights", "reference"):
        model = build(name, data.sample_shape, data.n_classes)
    learner = TorchLearner(model, TorchSettings(lr=config.lr), seed=config.seed, dtype=dtype_of(config.precision))
    pooled = np.unique(np.concatenate(list(split.clients.values())))
    stream = BatchStream(len(pooled), REFERENCE_BATCH, config.seed, "reference")
    for step in range(steps):
        chosen = pooled[stream.indices(step)]
        f = learner.logits(torch.as_tensor(data.train_x[chosen], dtype=dtype_of(config.precision)))
        learner.learn(d_cross_entropy(f, torch.as_tensor(data.train_y[chosen])))
    return learner
