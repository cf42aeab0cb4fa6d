"""Numbers that a method observes in a round, `self.observed["name"] = value`: they become columns of the record.

The server's half writes to metrics.jsonl. A client's half writes to clients.jsonl, and its mean over clients to
metrics.jsonl, in simulation only: a deployed site sends nothing but its messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from fedal.errors import RunError
from fedal.metrics.table import DATA, METRICS

NAME = re.compile(r"[A-Za-z0-9_]{1,60}")

COLUMNS = frozenset({
    "round", "iteration", "phase", "final", "client", "model", "private_samples", "participated", "participants",
    "up_bytes", "down_bytes", "seconds", "incarnation", "disagreement", "server_test_accuracy", "test_samples",
    "validation_samples", "honest_test_accuracy", "honest_test_accuracy_std", "honest_test_accuracy_min",
    "honest_test_accuracy_error", "evaluated_clients",
    "global_before_local", "global_after_local", "own_before_transfer", "own_after_transfer", "zeta",
    "variance_l", "variance_k", "variance_u", "variance_rl", "variance_rg", "variance_n",
    "client_gradient", "discriminator_gradient", "transfer_gain", "local_change", "own_change",
}) | {
    f"{data}_{name}" for data in ("test", "validation") for name in ("bias", "ensemble_accuracy", "gap")
} | {
    f"{data}_{metric.name}{end}"
    for data in DATA
    for metric in METRICS.values()
    for end in ("", "_std", "_error", f"_{metric.worst}")
} | {f"best_{data}_{name}" for data in DATA for name in METRICS} | {"best_iteration"}  # fmt: skip
"""The columns that fedal itself records, and those that the report derives: a method may not use their names."""


def numbers(observed: Mapping[str, Any], who: str) -> dict[str, float]:
    """name -> number; raises RunError for a name that is not allowed, or a value that is not one number."""
    found = {}
    for name, value in observed.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise RunError(
                f"{who} observed {name!r}: expected a name of letters, digits and underscores, at most 60 characters."
            )
        if name in COLUMNS:
            raise RunError(f'{who} observed "{name}", which is a column of the record already. Choose another name.')
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise RunError(
                f'{who} observed "{name}", a {type(value).__name__}; expected one number. Try: value.mean()'
            ) from None
    return found


def client_numbers(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """client -> name -> number."""
    return {client: numbers(values, f'client "{client}"') for client, values in observed.items()}


def mean_numbers(clients: Mapping[str, Mapping[str, float]], server: Mapping[str, float]) -> dict[str, float]:
    """name -> mean over the clients that observed it; raises RunError if the server observed the same name."""
    names = dict.fromkeys(name for values in clients.values() for name in values)
    if both := [name for name in names if name in server]:
        raise RunError(f'both clients and the server observed "{both[0]}". Give the two numbers different names.')
    return {name: fmean(values[name] for values in clients.values() if name in values) for name in names}
