"""What a person meets in an interactive session: names to complete, and objects that say what they are."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedal
from fedal.campaigns.compare import Comparison, MethodRuns
from fedal.config import Config
from fedal.errors import Stopped
from observers import StopAt

SETTINGS: dict[str, Any] = dict(clients=2, models="mlp-small", tau=2, batch_size=8, eval_every=2, eval_samples=50)


@pytest.mark.parametrize("package", ["fedal", "fedal.data", "fedal.methods", "fedal.models"])
def test_completion_offers_exactly_names_that_exist(package: str) -> None:
    module = importlib.import_module(package)
    offered = {name for name in dir(module) if not name.startswith("_")}
    assert offered == set(module.__all__)
    assert all(getattr(module, name) is not None for name in offered)


def test_every_public_name_is_documented_and_known_to_type_checkers() -> None:
    source = Path(fedal.__file__).read_text(encoding="utf-8")
    for name in fedal.__all__:
        assert (getattr(fedal, name).__doc__ or "").strip(), name
        assert f"import {name} as {name}" in source, name


@pytest.mark.processes
def test_looking_at_the_names_does_not_import_torch() -> None:
    code = "import sys, fedal; dir(fedal), dir(fedal.data), dir(fedal.methods); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert fedal.__version__ == project["project"]["version"]


def test_a_run_says_what_it_is_while_it_trains_and_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        fedal.run(Config(**SETTINGS, rounds=3, seed=7), path, callbacks=[StopAt(2)])
    begun = fedal.load_run(path)
    shown = f"{begun.metrics[-1]['test_accuracy']:.4f}"
    assert repr(begun) == f"Run('{path}': fedal on digits, seed 7, 2 of 6 iterations, accuracy {shown})"
    run = fedal.resume(path)
    accuracy = f"{run.final['test_accuracy']:.4f}"
    assert repr(run) == f"Run('{path}': fedal on digits, seed 7, 6 iterations, accuracy {accuracy})"
    (path / "metrics.jsonl").unlink()
    (path / "summary.json").unlink()
    assert repr(run) == f"Run('{path}': fedal on digits, seed 7, 0 of 6 iterations)"


def test_a_comparison_is_a_table_on_one_screen(tmp_path: Path) -> None:
    found = fedal.compare(["local", "fedmd-lf"], 2, tmp_path, SETTINGS | {"iterations": 2}, jobs=1)
    missing = MethodRuns("fedavg", [], "the clients have different models, " * 10)
    head, columns, local, fedmd, fedavg = repr(Comparison(found.path, (0, 1), [*found.rows, missing], [])).splitlines()
    assert head == f"Comparison('{tmp_path}')" and columns.split() == ["method", "test", "accuracy", "seeds"]
    values = found.rows[0].finals("test_accuracy").values()
    mean = sum(values) / 2
    assert local.split() == ["local", f"{mean:.4f}", "±", f"{found.rows[0].spread('test_accuracy'):.4f}", "2"]
    assert fedmd.index("±") == local.index("±"), "columns are aligned"
    assert "not applicable: the clients" in fedavg and len(fedavg) < 120
