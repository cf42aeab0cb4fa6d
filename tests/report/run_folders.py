"""Run folders written by hand, valid and invalid: reading one needs no training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

CLIENTS = ("anna", "ben", "cleo")


def write_run(
    path: Path,
    method: str = "fedmd",
    seed: int = 0,
    *,
    accuracies: Sequence[float] = (0.3, 0.5, 0.6),
    complete: bool = True,
    clients: Sequence[str] = CLIENTS,
    config: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    extra: dict[str, float] | None = None,
) -> Path:
    """A run with an evaluation every 10 iterations, before and after the transfer; the last is also the final one."""
    path.mkdir(parents=True)
    settings = {"method": method, "dataset": "digits", "alpha": 1.0, "iterations": 10 * len(accuracies), "seed": seed}
    (path / "config.toml").write_text(tomli_w.dumps(settings | {"options": {"tau": 5}} | (config or {})))
    known = {"torch": "2.13.0", "clients": dict.fromkeys(clients, "mlp-small"), "data": "digits: official files"}
    (path / "environment.json").write_text(json.dumps(known | (environment or {})))
    counts = np.arange(len(clients) * 2).reshape(len(clients), 2) + seed
    arrays = {f"client/{name}": np.arange(3) for name in clients}
    np.savez_compressed(path / "partition.npz", class_counts=counts, leftovers=np.array(1234), **arrays)
    rows, client_rows = [], []
    for index, accuracy in enumerate(accuracies):
        where = {"round": 2 * index + 2, "iteration": 10 * (index + 1)}
        last = complete and index == len(accuracies) - 1
        for phase, value, final in [("after_local", accuracy - 0.1, False), ("after_global", accuracy, False)] + [
            ("after_global", accuracy, True)
        ] * last:
            row = {
                **where, "phase": phase, "test_accuracy": value, "test_accuracy_std": 0.01,
                "test_accuracy_min": value - 0.05, "final": final, "up_bytes": 3000 * (index + 1),
                "down_bytes": 6000 * (index + 1), "seconds": 1.5 * (index + 1), **(extra or {}),
            }  # fmt: skip
            rows.append(row)
            client_rows += [
                {**where, "phase": phase, "client": name, "model": "mlp-small", "private_samples": 40,
                 "test_accuracy": value + 0.05 * (n - 1), "final": final, "up_bytes": 1000, "down_bytes": 2000}
                for n, name in enumerate(clients)
            ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in client_rows))
    return path


def write_server(path: Path, *, shared: Sequence[str] = CLIENTS[:2], rounds: int = 3) -> Path:
    """A server's folder: no test data, no partition; ben misses round 2, and only some sites share their accuracy."""
    path.mkdir(parents=True)
    settings = {"method": "fedal", "dataset": "digits", "iterations": 5 * rounds, "options": {"tau": 5}}
    (path / "config.toml").write_text(tomli_w.dumps(settings))
    (path / "federation.json").write_text(json.dumps({"run": "ab" * 16, "incarnation": 7}))
    (path / "environment.json").write_text(json.dumps({"torch": "2.13.0"}))
    rows, client_rows = [], []
    for number in range(1, rounds + 1):
        present = [name for name in CLIENTS if (name, number) != ("ben", 2)]
        accuracies = {name: 0.2 * number + 0.1 * (name == "anna") for name in present if name in shared}
        where = {"round": number, "iteration": 5 * number, "phase": "after_global", "final": number == rounds}
        sent = {"up_bytes": 1000 * number, "down_bytes": 2000 * number}
        row = {**where, **{key: 3 * value for key, value in sent.items()}, "participants": len(present)}
        if accuracies:
            row["own_test_accuracy"] = sum(accuracies.values()) / len(accuracies)
            row["own_test_accuracy_min"] = min(accuracies.values())
            row["own_test_accuracy_std"] = (max(accuracies.values()) - min(accuracies.values())) / 2  # of one or two
        observed = {"discriminator_accuracy": 0.4, "adversarial_grad_norm": 0.03}
        rows.append({**row, **observed, "seconds": 2.5 * number, "incarnation": 7})
        for name in CLIENTS:
            own = {"own_test_accuracy": accuracies[name]} if name in accuracies else {}
            client_rows.append({**where, "client": name, "participated": name in present, **sent, **own})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in client_rows))
    (path / "summary.json").write_text(json.dumps({"status": "complete", "final": rows[-1]}))
    return path


def write_comparison(path: Path) -> Path:
    """Two methods, three seeds."""
    for seed in range(3):
        write_run(path / "fedmd" / f"seed-{seed}", "fedmd", seed, accuracies=(0.3, 0.5, 0.6 + seed / 100))
        observed = {"discriminator_accuracy": 0.34, "adversarial_grad_norm": 0.003, "disagreement": 0.1}
        write_run(
            path / "fedal" / f"seed-{seed}", "fedal", seed, accuracies=(0.4, 0.6, 0.7 + seed**2 / 100), extra=observed
        )
    return path
