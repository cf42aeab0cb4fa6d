"""What is measured of models: the table of metrics, their values, intervals, and the clients' disagreement."""

from __future__ import annotations

from fedal.metrics.evaluation import EVALUATION_BATCH, accuracy, disagreement, divergences, evaluate, outputs, top_1
from fedal.metrics.scores import Predictions
from fedal.metrics.table import METRICS, Column, Metric, chosen, column

__all__ = [
    "EVALUATION_BATCH", "METRICS", "Column", "Metric", "Predictions", "accuracy", "chosen", "column", "disagreement",
    "divergences", "evaluate", "outputs", "top_1",
]  # fmt: skip
