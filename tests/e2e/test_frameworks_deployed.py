"""A PyTorch, a JAX and a scikit-learn site as processes over mutual TLS: each does better than alone."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedal
from deployments import SITES, Rehearsal
from frameworks import EXAMPLES
from optional import needs

pytestmark = pytest.mark.processes

MODELS = dict(zip(SITES, ("mlp-small", "jax_client:make", "sklearn_client:make"), strict=True))
SETTINGS: dict[str, Any] = dict(rounds=20, batch_size=32, alpha=0.5, options={"tau": 5}, eval_every=100)


def alone(seed: int, folder: Path) -> list[float]:
    """The accuracy of each site with the same model, data and number of local steps, but no exchange."""
    clients = [{"name": SITES[0], "model": MODELS[SITES[0]]}, *({"name": site} for site in SITES[1:])]
    made = {site: name.partition(":")[0] for site, name in MODELS.items() if ":" in name}
    models = {site: runpy.run_path(str(EXAMPLES / f"{module}.py"))["make"]() for site, module in made.items()}
    run = fedal.run(fedal.Config(**{**SETTINGS, "method": "local", "clients": clients, "seed": seed}), folder / "local",
                    models=models)  # fmt: skip
    return [row["test_accuracy"] for row in run.client_metrics if row["final"]]


def deployed(seed: int, folder: Path) -> list[float]:
    rehearsal = Rehearsal(folder, method="fedal", seed=seed, checkpoint_every="auto", **SETTINGS)
    server = rehearsal.serve_process()
    sites = [rehearsal.join_process(site, "--model", MODELS[site], "--share-metrics") for site in SITES]
    try:
        assert [process.wait(200) for process in (server, *sites)] == [0, 0, 0, 0]
    finally:
        for process in (server, *sites):
            process.kill()
    rows = [json.loads(line) for line in (folder / "server/clients.jsonl").read_text().splitlines()]
    return [row["own_test_accuracy"] for row in rows if row["final"]]


def gains(seeds: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.float64]:
    """Accuracy with the others minus accuracy alone: (seeds, sites)."""
    needs("jax", "jax")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    found = []
    for seed in range(seeds):
        (folder / str(seed)).mkdir()
        found.append([alone(seed, folder / str(seed)), deployed(seed, folder / str(seed))])
        print(f"seed {seed}: alone {np.round(found[-1][0], 3)}, deployed {np.round(found[-1][1], 3)}")
    on_their_own, together = np.array(found).transpose(1, 0, 2)
    return together - on_their_own


def test_three_frameworks_over_mutual_tls_do_better_than_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (gains(1, tmp_path, monkeypatch) > 0.1).all()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_three_frameworks_over_mutual_tls_do_better_than_on_their_ownin_the_mean_of_three_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gains(3, tmp_path, monkeypatch)
    mean, std = found.mean(0).round(3), found.std(0, ddof=1).round(3)
    print(f"mean gain of the PyTorch, JAX and scikit-learn site: {mean} ± {std}")
    assert (mean > 0.1).all()
