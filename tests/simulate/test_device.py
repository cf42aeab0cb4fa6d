"""`device` is one setting: every tensor of a round is made where the run computes.

Tensors on the device `meta` have shapes and no numbers, and meet no tensor of another device without an error: what
was forgotten on the CPU is found without a GPU.
"""

from __future__ import annotations

import pytest
import torch

from fedal.config import Config
from fedal.simulate.assemble import assemble
from worlds import InOrder, tiny_world


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("method", ["local", "fedmd", "fedmd-lf", "fedal"])
def test_nothing_of_a_round_stays_behind(method: str, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # The only questions that need a number are whether all numbers are finite: answered with yes.
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: True)
    config = Config(
        method=method,
        clients=3,
        models="cnn-small",
        batch_size=8,
        device="meta",
        stacked=stacked,
        local_loss="balanced",
    )
    assembly = assemble(config, tiny_world(config.client_names), InOrder())
    assert assembly.federation.play_round(0) == list(config.client_names)
    for learner in assembly.learners.values():
        assert {value.device.type for value in learner.weights().values()} == {"meta"}  # type: ignore[attr-defined]
