"""Reads a run's scores.json as plain data; a folder is untrusted, so every part is checked before it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedal.metrics.table import METRICS

MAX_CLASSES = 100  # larger tables are left out of a page


@dataclass(frozen=True)
class ClientScores:
    """A final model on one kind of data."""

    samples: int
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    per_class: list[tuple[float, float, float, int]]  # precision, recall, F1, samples
    confusion: list[list[int]]
    reliability: list[tuple[float, float, int]]  # predicted, observed, samples


@dataclass(frozen=True)
class Scores:
    """All final models of a run."""

    classes: list[str]
    positive: str | None
    clients: Mapping[str, Mapping[str, ClientScores]]  # client -> data -> its scores


def parse_scores(found: Mapping[str, Any]) -> Scores:
    """Raises ValueError or KeyError for anything but what fedal writes."""
    try:
        classes = [str(name) for name in found["classes"]]
        place = found["positive"]
        clients = {
            str(client): {str(data): _client(part, len(classes)) for data, part in each.items()}
            for client, each in found["clients"].items()
        }
        return Scores(classes, None if place is None else classes[int(place)], clients)
    except (TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not as fedal writes it: {error}") from None


def _client(part: Mapping[str, Any], n_classes: int) -> ClientScores:
    values = {name: _number(value) for name, value in part["values"].items() if name in METRICS}  # the headline first
    intervals = {
        name: (_number(low), _number(high)) for name, (low, high) in part["intervals"].items() if name in METRICS
    }
    each = [part["per_class"][name] for name in ("precision", "recall", "f1", "samples")]
    per_class = [
        (_number(p), _number(r), _number(f), int(_number(n))) for p, r, f, n in zip(*each, strict=True)
    ]  # fmt: skip
    confusion = [[int(_number(count)) for count in row] for row in part["confusion"]]
    if len(per_class) != n_classes or [len(row) for row in confusion] != [n_classes] * n_classes:
        raise ValueError(f"its tables do not have {n_classes} classes")
    points = [
        (_number(p["predicted"]), _number(p["observed"]), int(_number(p["samples"]))) for p in part["reliability"]
    ]
    if not all(0 <= predicted <= 1 and 0 <= observed <= 1 for predicted, observed, _ in points):
        raise ValueError("its reliability diagram has a share outside 0 to 1")
    return ClientScores(int(_number(part["samples"])), values, intervals, per_class, confusion, points)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is not a finite number")
    return float(value)
