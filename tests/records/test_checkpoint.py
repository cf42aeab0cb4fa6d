"""Checkpoints: atomic, verified, without pickle, the two newest kept."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import random
import shutil
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedal import durable
from fedal.errors import CheckpointError, NonFiniteError
from fedal.records import checkpoint
from fedal.records.checkpoint import load_checkpoint, load_newest, save_checkpoint
from splits import fingerprint


def state(round_: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(round_)
    return {
        "clients": {
            "anna": {"learner": {"model": {"w": torch.randn(3, 4, generator=generator)}, "optimizer": {}, "step": 3}},
            "ben": {"learner": {"model": {"b": torch.randn(5, generator=generator, dtype=torch.float64)}}},
        },
        "counter": torch.tensor(7),
        "bytes": {"anna": 10**12},
        "seconds": 1.5,
        "text": 'quotes " and ünïcode',
        "list": [1, 2.5, "x", None, True],
        "nothing": {},
    }


def save(folder: Path, *rounds: int) -> None:
    for round_ in rounds:
        save_checkpoint(folder, round_, state(round_))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 4)
    found = load_newest(tmp_path / "checkpoints", warn=pytest.fail)
    assert found is not None
    assert found[0] == 4 and fingerprint(found[1]) == fingerprint(state(4))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.arange(6).view(2, 3).T,
        torch.tensor(3.0),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
    ],
    ids=["channels_last", "transposed", "scalar", "empty", "bool", "bfloat16", "parameter"],
)
def test_every_kind_of_tensor_is_restored(tensor: torch.Tensor, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"t": tensor})
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    back = found[1]["t"]
    assert back.dtype == tensor.dtype and torch.equal(back, tensor.detach()) and not back.requires_grad


def test_tensors_that_share_memory_are_both_saved(tmp_path: Path) -> None:
    w = torch.arange(4.0)
    save_checkpoint(tmp_path, 1, {"a": w, "b": w, "part": w[1:3]})
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    assert fingerprint(found[1]) == fingerprint({"a": w, "b": w, "part": w[1:3]})


def test_states_given_as_functions_are_called_once_and_never_in_memory_together(tmp_path: Path) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    asked: list[int] = []

    def client(number: int) -> dict[str, Any]:
        assert not alive
        asked.append(number)
        w = torch.full((3,), float(number))
        alive.add(w)
        return {"w": w, "flags": torch.tensor([True]), "step": number}

    save_checkpoint(tmp_path, 1, {str(n): {"learner": partial(client, n)} for n in range(4)})
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None
    assert asked == [0, 1, 2, 3]
    expected = {
        str(n): {"learner": {"w": torch.full((3,), float(n)), "flags": torch.tensor([True]), "step": n}}
        for n in range(4)
    }
    assert fingerprint(found[1]) == fingerprint(expected)


def test_tensors_of_all_widths_are_aligned_in_the_file(tmp_path: Path) -> None:
    types = (torch.bool, torch.float64, torch.float16, torch.float32, torch.int64)
    save_checkpoint(tmp_path, 1, {str(n): torch.ones(3).to(dtype) for n, dtype in enumerate(types)})
    saved = json.loads((tmp_path / "round-0000001.json").read_bytes())["state"]
    starts = [part["__tensor__"]["start"] for part in saved.values()]
    assert starts == sorted(set(starts)) and not any(start % 8 for start in starts)


def test_tensors_of_an_unsupported_type_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a/b: a tensor of type torch.complex128"):
        save_checkpoint(tmp_path, 1, {"a": {"b": torch.ones(2, dtype=torch.complex128)}})
    assert names(tmp_path) == []


def test_names_with_slashes_are_not_mixed_up(tmp_path: Path) -> None:
    tricky = {"a": {"b": torch.zeros(1), "b/c": torch.ones(1)}, "a/b": torch.full((1,), 2.0), "a/b/c": torch.ones(2)}
    save_checkpoint(tmp_path, 1, tricky)
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None and fingerprint(found[1]) == fingerprint(tricky)


def test_a_state_that_is_neither_tensors_nor_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 1, {"object": object()})


def test_there_is_nothing_to_load_in_a_new_folder(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "none", warn=pytest.fail) is None
    assert load_newest(tmp_path, warn=pytest.fail) is None


def test_only_the_two_newest_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 9, 10, 100)
    assert names(tmp_path) == [
        "round-0000010.json",
        "round-0000010.tensors",
        "round-0000100.json",
        "round-0000100.tensors",
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_non_finite_state_is_refused_by_name(number: float, tmp_path: Path) -> None:
    save(tmp_path, 1)
    bad = state(2)
    bad["clients"]["anna"]["learner"]["model"]["w"][0, 0] = number
    with pytest.raises(
        NonFiniteError, match=r"clients/anna/learner/model/w has non-finite values after round 2; nothing was"
    ):
        save_checkpoint(tmp_path, 2, bad)
    assert names(tmp_path) == ["round-0000001.json", "round-0000001.tensors"]


# damage


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "zeros":
        path.write_bytes(bytes(len(content)))
    elif how == "gone":
        path.unlink()
    elif how == "longer":
        path.write_bytes(content + b"x")


@pytest.mark.parametrize(
    ("suffix", "how"),
    [
        (suffix, how)
        for suffix in (".json", ".tensors")
        for how in ("cut", "empty", "zeros", "gone", "longer")
        if (suffix, how) != (".json", "gone")  # then there is no such checkpoint
    ],
)
def test_a_damaged_newest_checkpoint_is_refused_by_name_and_the_older_one_used(
    suffix: str, how: str, tmp_path: Path
) -> None:
    save(tmp_path, 3, 5)
    damaged(tmp_path / f"round-0000005{suffix}", how)
    warnings: list[str] = []
    found = load_newest(tmp_path, warnings.append)
    assert found is not None and found[0] == 3 and fingerprint(found[1]) == fingerprint(state(3))
    assert len(warnings) == 1 and "round-0000005" in warnings[0] and "Using the previous checkpoint" in warnings[0]


def test_when_all_checkpoints_are_damaged_the_error_says_so(tmp_path: Path) -> None:
    save(tmp_path, 3, 5)
    for path in tmp_path.iterdir():
        damaged(path, "cut")
    warnings: list[str] = []
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged"):
        load_newest(tmp_path, warnings.append)
    assert len(warnings) == 2 and "previous" not in warnings[1]


def test_any_flipped_bit_is_detected_or_harmless(tmp_path: Path) -> None:
    save(tmp_path, 5)
    expected, path = fingerprint(state(5)), tmp_path / "round-0000005.json"
    sources = {file: file.read_bytes() for file in (path, path.with_suffix(".tensors"))}
    generator, harmless = random.Random(0), 0
    for file, content in sources.items():
        for position in generator.sample(range(8 * len(content)), 400):
            flipped = bytearray(content)
            flipped[position // 8] ^= 1 << position % 8
            file.write_bytes(flipped)
            try:
                round_, loaded = load_checkpoint(path)
            except CheckpointError:
                continue
            assert round_ == 5 and fingerprint(loaded) == expected  # the case of a hex digit in an escape, at most
            harmless += 1
        file.write_bytes(content)
    assert harmless < 10
    assert load_checkpoint(path)[0] == 5


@pytest.mark.parametrize(
    "content", [b"[]", b"null", b"{}", b'"text"', b'{"checksum": 1}', b"[" * 5000, b"\xff\xfe\x00"]
)
def test_a_file_with_other_content_is_refused(content: bytes, tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / "round-0000005.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"round-0000005.json: cannot be read"):
        load_checkpoint(tmp_path / "round-0000005.json")


def test_tensors_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 4, 5)
    shutil.copy(tmp_path / "round-0000004.tensors", tmp_path / "round-0000005.tensors")
    with pytest.raises(CheckpointError, match=r"round-0000005.tensors: the checksum does not match"):
        load_checkpoint(tmp_path / "round-0000005.json")


def test_a_format_of_the_future_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    save(tmp_path, 5)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 99; this version of fedal reads format 2"):
        load_checkpoint(tmp_path / "round-0000005.json")


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, pytest.fail)
    save(tmp_path, 5)
    assert load_newest(tmp_path, warn=pytest.fail) is not None
    json.loads((tmp_path / "round-0000005.json").read_text())
    assert b"pickle" not in (tmp_path / "round-0000005.tensors").read_bytes()


# interrupted saves


def test_tensors_without_their_json_are_an_unfinished_save(tmp_path: Path) -> None:
    save(tmp_path, 3, 4)
    (tmp_path / "round-0000005.tensors").write_bytes(b"incomplete")
    (tmp_path / ".tmp-round-0000005.json").write_bytes(b"{")
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None and found[0] == 4
    save(tmp_path, 6)
    assert names(tmp_path) == [f"round-000000{n}.{kind}" for n in (4, 6) for kind in ("json", "tensors")]


class Failing:
    """Passes a number of calls to a function, then raises "disk full"."""

    def __init__(self, function: Any, passes: int) -> None:
        self._function, self._passes = function, passes

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._passes -= 1
        if self._passes < 0:
            raise OSError(28, "No space left on device")
        return self._function(*arguments, **keywords)


@pytest.mark.parametrize(
    ("where", "name", "passes"),
    [(durable, "open", 0), (durable, "open", 1)]
    + [(durable.os, "fsync", passes) for passes in range(4)]
    + [(durable.os, "replace", 0), (durable.os, "replace", 1)],
)
def test_a_full_disk_at_any_moment_leaves_an_intact_checkpoint(
    where: Any, name: str, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3, 4)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, Failing(getattr(where, name, builtins.open), passes), raising=False)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 5)
    found = load_newest(tmp_path, warn=pytest.fail)
    committed = (tmp_path / "round-0000005.json").exists()
    assert found is not None and found[0] == (5 if committed else 4)
    assert fingerprint(found[1]) == fingerprint(state(found[0]))
    assert committed == (name == "fsync" and passes == 3)  # only the folder's last fsync comes after the commit
    assert not any(entry.startswith(".tmp") for entry in os.listdir(tmp_path))
    save(tmp_path, 5, 6)  # and the next save works
    assert load_newest(tmp_path, warn=pytest.fail)[0] == 6


def test_saving_a_round_again_over_a_damaged_one_repairs_it(tmp_path: Path) -> None:
    save(tmp_path, 3, 5)
    damaged(tmp_path / "round-0000005.json", "cut")
    save(tmp_path, 4)
    warnings: list[str] = []
    assert load_newest(tmp_path, warnings.append)[0] == 4
    save(tmp_path, 5)
    assert load_newest(tmp_path, warn=pytest.fail)[0] == 5
