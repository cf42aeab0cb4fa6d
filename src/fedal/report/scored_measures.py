"""Measures for the metrics of docs/metrics.md: each on each kind of data, and the three that rows are compared by."""

from __future__ import annotations

from dataclasses import replace

from fedal.metrics.table import METRICS, Column
from fedal.report.measures import ACCURACY, CHECKS, OVER_ALL, OWN_TESTS, SPREAD, TESTS, WORST, Measure

ON = {
    "test": TESTS,
    "validation": CHECKS,
    "own_validation": "samples of the client that it does not train on",
    "own_test": OWN_TESTS,
}
UNBOUNDED = ("log_loss", "brier")


def measure_of(column: Column) -> Measure:
    metric = column.metric
    direction = "" if metric.higher_is_better else " Lower is better."
    return Measure(
        column.key, column.words, "each client's own", ON[column.data], OVER_ALL, metric.sentence + direction,
        "number" if metric.name in UNBOUNDED else "share", metric.higher_is_better,
    )  # fmt: skip


def compared_by(column: Column) -> tuple[Measure, Measure, Measure]:
    """The mean, the worst client and the standard deviation over clients of a column of the test set."""
    if column.metric.name == "accuracy":
        return ACCURACY, WORST, SPREAD
    main, words = measure_of(column), column.metric.words
    lowest = "lowest" if column.metric.higher_is_better else "highest"
    worst = replace(
        main, key=column.worst_key, model="the worst client's", average=f"{lowest} client, then mean over seeds",
        name="worst client", sentence=f"The {words} of the client for which it is worst.",
    )  # fmt: skip
    spread = replace(SPREAD, key=f"{column.key}_std", sentence=f"How unequal the clients' {words} is; 0 means equal.")
    return main, worst, spread


SCORED: tuple[Measure, ...] = tuple(
    measure_of(Column(metric, data)) for data in ON for metric in METRICS.values() if metric.name != "accuracy"
)
