"""Files of a run that come from elsewhere: nested, huge, renamed, of another run. Each ends in one message."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedal.config import Config, load_config, parse_assignments
from fedal.errors import CheckpointError, ConfigError, FedalError
from fedal.records import checkpoint
from fedal.records.checkpoint import load_checkpoint, load_newest, save_checkpoint, saved_rounds, verified_rounds
from fedal.records.folder import read_json
from fedal.records.run import read_rows
from fedal.simulate.run import resume, run

DEEP = "[" * 100_000
LONG = "1" * 10_000  # digits


@pytest.mark.parametrize("text", [f"a = {DEEP}", f"seed = {LONG}", f"a = {'{b=' * 50_000}"])
def test_nested_toml_and_huge_integers_are_config_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path, {})
    assert parse_assignments([text.replace(" = ", "=")])  # taken as text, which no setting accepts


NESTED = [DEEP, '{"a":' * 100_000, f'{{"run": {LONG}}}', '"a"', "3"]


@pytest.mark.parametrize("text", [*NESTED, '{"run": 1e999}', "[]"])
def test_nested_json_and_huge_integers_are_checkpoint_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"a\.json"):
        read_json(path, lambda found: int(found["run"]))


@pytest.mark.parametrize("text", NESTED)
def test_a_record_that_cannot_be_read_is_a_checkpoint_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        read_rows(path)


def test_a_file_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "round-0000003.json"
    save_checkpoint(tmp_path, 3, {"a": 1})
    os.truncate(path, 1 << 43)  # sparse: it takes no space
    large = r"larger than [\d,]+ bytes"
    with pytest.raises(ConfigError, match=large):
        load_config(path, {})
    for read in (lambda: read_json(path, dict), lambda: read_rows(path), lambda: load_checkpoint(path)):
        with pytest.raises(CheckpointError, match=large):
            read()


@pytest.mark.parametrize("value", [10**30, -(10**30), 10**400])
def test_a_huge_integer_in_any_setting_is_an_error_or_a_value(value: int) -> None:
    for name in Config.model_fields:
        with suppress(FedalError):
            Config(**{name: value})


def resealed(path: Path, change: Any) -> None:
    """Changes a checkpoint and makes its checksum right again, as someone could who hands it on."""
    found = json.loads(path.read_bytes())
    found.pop("checksum")
    change(found)
    path.write_text(json.dumps({**found, "checksum": checkpoint._checksum(found)}))


def place(**changes: Any) -> dict[str, Any]:
    return {"a": {"__tensor__": {"type": "float32", "shape": [2], "start": 0, **changes}}}


ODD = [
    [],
    "text",
    {"round": 1e999},
    place(shape=[2**60]),
    place(shape=[0, 1e999]),
    place(start=-8),
    {"a": {"__tensor__": 3}},
]


@pytest.mark.parametrize("state", ODD, ids=str)
def test_a_sealed_checkpoint_with_odd_content_is_a_checkpoint_error(state: Any, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"round": 3})
    path = tmp_path / "round-0000003.json"
    resealed(path, lambda found: found.update({"state": state, **({"round": 1e999} if "round" in state else {})}))
    with pytest.raises(CheckpointError, match="round-0000003"):
        load_checkpoint(path)


def test_stray_names_are_not_checkpoints(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"round": 3})
    strays = ["round-x.json", "round-0000009 (copy).json", "round-9.json", "round-0000009.json.bak", "round-x.tensors"]
    for name in strays:
        shutil.copy(tmp_path / "round-0000003.json", tmp_path / name)
    (tmp_path / "round-0000008.json").mkdir()
    os.mkfifo(tmp_path / "round-0000007.json")
    assert list(saved_rounds(tmp_path)) == [3] == verified_rounds(tmp_path, pytest.fail)
    assert load_newest(tmp_path, pytest.fail)[0] == 3  # type: ignore[index]
    save_checkpoint(tmp_path, 4, {"round": 4})
    assert all((tmp_path / name).exists() for name in strays), "not ours to remove"


def test_a_renamed_checkpoint_is_not_taken_for_a_later_round(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"round": 3})
    for end in (".json", ".tensors"):
        shutil.copy(tmp_path / f"round-0000003{end}", tmp_path / f"round-0000009{end}")
    said: list[str] = []
    assert load_newest(tmp_path, said.append)[0] == 3  # type: ignore[index]
    assert "after round 3" in said[0]


@pytest.mark.parametrize("change", ["another method", "another model", "nothing in it"])
def test_the_checkpoint_of_another_run_is_one_error(change: str, tmp_path: Path) -> None:
    short: dict[str, Any] = {"clients": 2, "rounds": 1, "batch_size": 8, "checkpoint_every": 1, "tau": 1}
    others = {"another method": ("local", "cnn-small"), "another model": ("fedal", "mlp-small")}
    folder = run(Config(method="fedal", models="cnn-small", **short), tmp_path / "run").path
    shutil.rmtree(folder / "checkpoints")
    if change in others:
        method, models = others[change]
        other = run(Config(method=method, models=models, **short), tmp_path / "other")
        shutil.copytree(other.path / "checkpoints", folder / "checkpoints")
        for path in saved_rounds(folder / "checkpoints").values():
            resealed(path, lambda found: found["state"].pop("settings"))  # which would name the difference
    else:
        save_checkpoint(folder / "checkpoints", 1, {"settings": {}})
    with pytest.raises(CheckpointError, match="does not fit this run"):
        resume(folder, iterations=2)
