"""A small federation that is trained twice, once with an interruption: both must end with the same bits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedal.config import Config
from fedal.errors import FedalError, Stopped
from fedal.records.run import Run
from fedal.simulate.callback import Callback
from fedal.simulate.run import resume, run

ROUNDS = 4
CHANCE = 0.1  # with ten classes


class SelfTestError(FedalError):
    """fedal does not do on this machine what it promises."""


@dataclass(frozen=True)
class SelfTest:
    """What a self-test that passed has found."""

    iterations: int
    accuracy: float
    compared: int  # files of weights
    seconds: float


class _StopAfterOneRound(Callback):
    def should_stop(self) -> bool:
        return True


def self_test(folder: Path) -> SelfTest:
    """Trains a few rounds in `folder`, with and without an interruption, and compares; raises SelfTestError."""
    began = time.monotonic()
    config = Config(method="fedal", clients=3, models=("mlp-small", "cnn-small-bn"), rounds=ROUNDS, eval_every=10)
    whole = run(config, folder / "whole")
    try:
        run(config, folder / "interrupted", callbacks=[_StopAfterOneRound()])
    except Stopped:
        pass
    else:
        raise SelfTestError("a run that was asked to stop did not stop.")
    interrupted = resume(folder / "interrupted")
    if _rows(whole) != _rows(interrupted):
        raise SelfTestError("a resumed run and an uninterrupted one have different metrics.")
    for client in config.client_names:
        name = f"{client}.safetensors"
        if (whole.folder.models / name).read_bytes() != (interrupted.folder.models / name).read_bytes():
            raise SelfTestError(f"a resumed run and an uninterrupted one have different weights at {client}.")
    accuracy = float(whole.final["test_accuracy"])
    if not accuracy > CHANCE:
        raise SelfTestError(f"after {ROUNDS * config.tau} iterations the test accuracy is {accuracy:.3f}: no training.")
    return SelfTest(ROUNDS * config.tau, accuracy, len(config.client_names), time.monotonic() - began)


def _rows(run: Run) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.metrics]
