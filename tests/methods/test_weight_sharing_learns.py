"""Every method that shares weights learns: its models recognise samples that no client has, after a few rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedal import methods
from splits import build_of_table_models, run_rounds, tiny_split

ROUNDS, START = 12, 0.45  # one of three classes by chance; no method begins above this
SHARING = [name for name, module in methods.MODULES.items() if ".parameters." in module]
ENOUGH: dict[str, dict[str, Any]] = {
    "fedcvae": {"autoencoder_steps": 3 * ROUNDS, "decoder_steps": 60, "classifier_steps": 60, "autoencoder_lr": 0.02},
    "fedgen": {"generator_steps": 5},
    "fedzkt": {"server_iterations": 2, "transfer": 2},
    "dfrd": {"server_iterations": 2},
    "fedftg": {"server_iterations": 2},
    "fedreg": {"perturbation_steps": 2},
}


def accuracy(federation: Any) -> float:
    """Mean over clients on the first 40 samples, which no client has: the public ones, with their labels."""
    data = tiny_split(tuple(federation.clients)).dataset
    x, y = torch.as_tensor(data.train_x[:40]), torch.as_tensor(data.train_y[:40])
    hits = [(logic.learner.predict(x).argmax(-1) == y).double().mean() for logic in federation.clients.values()]
    return float(torch.stack(hits).mean())


@pytest.mark.parametrize("method", SHARING)
def test_its_models_recognise_other_samples(method: str) -> None:
    federation = build_of_table_models(method, options={"tau": 3, **ENOUGH.get(method, {})})
    before = accuracy(federation)
    after = accuracy(run_rounds(federation, ROUNDS))
    assert before < START and after > 0.7, f"{before:.2f} -> {after:.2f}"
