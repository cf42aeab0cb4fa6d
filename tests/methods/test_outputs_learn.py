"""Methods that send outputs teach clients the class that they have never seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from splits import build_federation, mlp, run_rounds, split_of_classes

ROUNDS = 12
OWNED = {"anna": (0, 1), "ben": (1, 2), "cleo": (0, 2)}
METHODS: dict[str, dict[str, Any]] = {
    "fedmd": {},
    "ds-fl": {},
    "cronus": {"trim": 0.0},  # with three clients, a suspect is a third of all that is known
    "fedgems": {},
    "fedeven": {},
    "fedlift": {},
    "expguard": {},
    "kt-pfl": {"distillation": 100.0},  # T^2: its temperature of 10 makes gradients so much smaller
    "scarlet": {"lifetime": 2},
    "selective-fd": {},
    "fedaux": {},
    "uwa": {},
    "fedkt": {"teacher_iterations": 3 * ROUNDS // 2},
}


def accuracy_of(method: str, **options: Any) -> float:
    """Mean over three clients, each of which lacks one of three classes, on public samples, whose labels none has."""
    split = split_of_classes(OWNED)
    federation = build_federation(method, nets=dict.fromkeys(OWNED, mlp), split=split, tau=3, **options)
    run_rounds(federation, ROUNDS)
    x, y = torch.as_tensor(split.public_x), torch.as_tensor(split.dataset.train_y[: len(split.public_x)])
    hits = [(logic.learner.predict(x).argmax(-1) == y).double().mean() for logic in federation.clients.values()]
    return float(torch.stack(hits).mean())


@pytest.fixture(scope="module")
def alone() -> float:
    return accuracy_of("local", local_stages=2)


@pytest.mark.parametrize("method", METHODS)
def test_clients_learn_what_their_own_data_lack(method: str, alone: float) -> None:
    together = accuracy_of(method, **METHODS[method])
    assert alone < 0.7 and together > alone + 0.1, f"{alone:.2f} -> {together:.2f}"
