"""scores.json: what a run's final models get right and wrong, per client and per kind of data.

It has what does not fit into a row: intervals, the confusion matrix, metrics per class, the reliability diagram. A run
that records accuracy alone has no such file.
"""

from __future__ import annotations

from typing import Any

from fedal.metrics import Predictions
from fedal.metrics.bootstrap import intervals
from fedal.metrics.scores import compute, confusion, per_class, reliability
from fedal.seeding import philox_key
from fedal.theory.view import EvaluationSet, FederationView


def final_scores(view: FederationView) -> dict[str, Any] | None:
    """The content of scores.json; None if the run records accuracy alone."""
    if view.metrics == ("accuracy",):
        return None
    data = view.split.dataset
    each = view.workers.map(
        lambda client: {on.name: _scores(view, on, on.predictions(view.learners[client])) for on in view.sets(client)},
        view.evaluated,
    )
    return {
        "metrics": list(view.metrics),
        "classes": list(data.class_names or map(str, range(data.n_classes))),
        "positive": (1 if data.positive is None else data.positive) if data.n_classes == 2 else None,
        "clients": dict(zip(view.evaluated, each, strict=True)),
    }


def _scores(view: FederationView, on: EvaluationSet, predictions: Predictions) -> dict[str, Any]:
    key = philox_key(view.config.seed, "bootstrap", on.name)
    names = tuple(dict.fromkeys([*view.metrics, "accuracy"]))
    return {
        "samples": len(predictions.labels),
        "values": compute(predictions, names),
        "intervals": intervals(predictions, names, key),
        "per_class": per_class(predictions),
        "confusion": confusion(predictions),
        "reliability": reliability(predictions),
    }
