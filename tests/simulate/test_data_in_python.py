"""Data given in Python: the record names them, and the run resumes with them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedal as package
from commands import fedal
from e2e.lives import outcome
from fedal.data import from_tensors
from fedal.errors import ConfigError, FedalError
from observers import StopAt

pytestmark = pytest.mark.usefixtures("empty_folder")

X = np.random.default_rng(0).normal(size=(240, 6)).astype(np.float32)
DATA = from_tensors(X, (X.sum(1) > 0).astype(np.int64), name="my wine / 2")
SETTINGS = dict(clients=2, rounds=4, tau=2, batch_size=8, checkpoint_every=1, public_size=40)


def test_the_record_and_the_folder_name_the_data_that_were_used() -> None:
    run = package.run(package.Config(**SETTINGS), data=DATA)  # type: ignore[arg-type]
    assert re.fullmatch(r"\d{8}-\d{6}-fedal-my-wine-2-seed0", run.path.name)
    recorded = tomllib.loads((run.path / "config.toml").read_text())
    assert recorded["dataset"] == "my wine / 2" and recorded["partition"] == "dirichlet"
    assert recorded["data_in_python"] is True
    assert "digits" not in (run.path / "config.toml").read_text()
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["data"] == "my wine / 2: custom tensors" and environment["data_given_in_python"] is True
    assert package.load_run(run.path).config.dataset == "my wine / 2"
    assert fedal("report", run.path).code == 0


def test_a_file_in_the_config_is_not_recorded_if_other_data_were_given() -> None:
    np.savez("file.npz", x=X, y=np.zeros(240, np.int64))
    run = package.run(package.Config(**SETTINGS, data="file.npz"), "a", data=DATA)  # type: ignore[arg-type]
    assert run.config.data is None and run.config.dataset == "my wine / 2"


def test_its_config_alone_is_an_error_that_asks_for_the_data() -> None:
    run = package.run(package.Config(**SETTINGS), "a", data=DATA)  # type: ignore[arg-type]
    answer = fedal("run", "--config", "a/config.toml", "--out", "b")
    assert answer.code == 2
    assert 'dataset "my wine / 2" was passed in Python. Pass it again: data=...' in answer.err
    again = package.run(run.config.with_(partition=None), "b", data=DATA)
    assert outcome(again.path) == outcome(run.path)


def test_such_a_run_resumes_with_its_data_and_says_so_without_them() -> None:
    config = package.Config(**SETTINGS)  # type: ignore[arg-type]
    package.run(config, "whole", data=DATA)
    with pytest.raises(FedalError, match="stopped after iteration 4"):
        package.run(config, "parts", data=DATA, callbacks=[StopAt(4)])
    calls = {"resume": "fedal.resume(path, data=...)", "analyse": "fedal.analysis.analyse.analyse(run, data=...)"}
    for word, call in calls.items():
        answer = fedal(word, "parts")
        assert answer.code == 2 and f"call {call}" in answer.err
    with pytest.raises(ConfigError, match="data="):
        package.resume("parts")
    package.resume("parts", data=DATA)
    assert outcome(Path("parts")) == outcome(Path("whole"))
    longer = package.resume("parts", data=DATA, iterations=12)
    assert longer.final["iteration"] == 12 and longer.config.dataset == "my wine / 2"
