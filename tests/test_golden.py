"""This tree reproduces the stored bits; golden.py records and compares them."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedal
import golden
from golden_runs import LATER, LATER_METHODS, METHODS, ON_RAY, RUNS, rows_digest, run_digests
from optional import needs


@pytest.mark.processes
def test_the_bits_match_the_stored_ones() -> None:
    key = golden.machine()
    if key not in golden.stored():
        pytest.skip(f"no golden bits are stored for {key}. From a tree that is right, type: {golden.RECORD}")
    for package, extra in (("grpc", "deploy"), ("cryptography", "deploy"), ("ray", "ray")):
        needs(package, extra)
    stored, now = golden.stored()[key], golden.record()
    assert golden.differences(stored, now) == []
    if unknown := golden.not_compared(stored, now):
        pytest.skip(f"{len(stored)} runs have the stored bits; {unknown}. From a tree that is right: {golden.RECORD}")


def test_the_golden_runs_are_recorded() -> None:
    """The first methods on every kind of machine, the later ones on at least one."""
    assert {*METHODS, *LATER_METHODS} <= set(fedal.methods.MODULES)
    for key, digests in golden.stored().items():
        assert {*RUNS, *ON_RAY} - {*LATER} < digests.keys(), key
    assert any({*RUNS, *ON_RAY} < digests.keys() for digests in golden.stored().values())


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = fedal.Config(clients=2, models="mlp-small", rounds=2, tau=1, batch_size=8, eval_every=1)
    return fedal.run(config, tmp_path_factory.mktemp("golden") / "run").path


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def test_one_bit_of_one_weight_changes_the_digest_of_the_weights(folder: Path) -> None:
    before = run_digests(folder)
    path = folder / "models/client-01.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert golden.differences({"run": before}, {"run": run_digests(folder)}) == ["run: weights"]


@pytest.mark.parametrize(("file", "what"), [("metrics.jsonl", "metrics"), ("clients.jsonl", "clients")])
def test_one_number_of_one_row_changes_the_digest_of_the_rows(folder: Path, file: str, what: str) -> None:
    before, path = run_digests(folder), folder / file
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["test_accuracy"] += 1e-15
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert golden.differences({"run": before}, {"run": run_digests(folder)}) == [f"run: {what}"]


def test_times_and_the_order_of_keys_are_ignored(folder: Path) -> None:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    later = [dict(reversed((row | {"seconds": 9.5}).items())) for row in copy.deepcopy(rows)]
    assert rows_digest(later) == rows_digest(rows)
    assert rows_digest(rows[1:]) != rows_digest(rows)


def test_a_missing_run_is_a_difference() -> None:
    one: golden.Digests = {"fedal": {"weights": "a", "metrics": "b"}}
    assert golden.differences(one, {}) == ["fedal: weights", "fedal: metrics"]
    assert golden.differences(one, one) == [] and golden.not_compared(one, one) == ""


def test_a_run_without_stored_digests_is_named_and_no_difference() -> None:
    one: golden.Digests = {"fedal": {"weights": "a"}}
    more = one | {"fedreg": {"weights": "b"}}
    assert golden.differences(one, more) == []
    assert golden.not_compared(one, more).endswith("no earlier digests: fedreg")
