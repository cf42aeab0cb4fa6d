"""Saves the state of all roles atomically at the end of a round, and verifies it when loading.

A checkpoint is two files: the tensors, then a JSON file with everything else, the position of each tensor, and the
checksums. Writing the JSON file commits the checkpoint: tensors without it are an unfinished save. The two newest
checkpoints are kept. If the newest is damaged, loading reports its name and uses the older one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from fedal.durable import TEMPORARY, replacing, sync_folder, write_atomically
from fedal.errors import CheckpointError, NonFiniteError
from fedal.finite import is_finite
from fedal.learners.base import State
from fedal.records.tensor_file import open_tensors, read_tensor, write_tensor

FORMAT = 2
KEEP = 2
TENSOR = "__tensor__"
TENSORS = ".tensors"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError)


def save_checkpoint(folder: Path, round_: int, state: dict[str, Any]) -> None:
    """Saves `state` (nested dicts of tensors and JSON values) as the checkpoint after `round_` rounds.

    A function in `state` is called once, when its part is written, so the states of many clients are never in memory
    together.
    """
    if not folder.exists():
        folder.mkdir()
        sync_folder(folder.parent)
    with replacing(folder / f"round-{round_:07}{TENSORS}") as file:

        def write(name: str, tensor: Tensor) -> dict[str, Any]:
            if tensor.is_floating_point() and not is_finite(tensor):
                raise NonFiniteError(
                    f"{name} has non-finite values after round {round_}; nothing was saved. A smaller lr usually helps."
                )
            return write_tensor(file, name, tensor)

        rest = _take_tensors(state, "", write)
        json.dumps(rest)  # raises for values that are neither tensors nor JSON, before any file is in place
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    body = {"format": FORMAT, "round": round_, "tensors_sha256": sha256, "state": rest}
    text = json.dumps({**body, "checksum": _checksum(body)})  # not indented: that takes ten times as long
    write_atomically(folder / f"round-{round_:07}.json", text.encode())
    _drop_old(folder, round_)


def save_model(path: Path, state: State) -> None:
    """Writes the trained arrays of a learner as safetensors: the "model" part of its state, or all its tensors if it
    has no such part."""
    tensors: dict[str, Tensor] = {}

    def take(name: str, tensor: Tensor) -> None:
        while name in tensors:  # {"a": {"b": ...}, "a/b": ...} has two tensors with one path
            name += "'"
        tensors[name] = tensor.detach().cpu().clone().contiguous()  # safetensors rejects tensors that share memory

    _take_tensors(state.get("model", state), "", take)
    write_atomically(path, save_tensors(tensors))


def load_newest(folder: Path, warn: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
    """The newest intact checkpoint as (rounds done, state); None if the folder has no checkpoint."""
    found = sorted(folder.glob("round-*.json"), reverse=True)
    for path in found:
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            warn(f"{error} Using the previous checkpoint." if path != found[-1] else str(error))
    if found:
        raise CheckpointError(f"{folder}: all {len(found)} checkpoints are damaged. Start again in a new folder.")
    return None


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Reads a checkpoint as (rounds done, state) after verifying checksums. Reads only arrays and JSON, never code."""
    try:
        found, tensors = _read_json(path), path.with_suffix(TENSORS)
        with open(tensors, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != found["tensors_sha256"]:
            raise CheckpointError(f"{tensors}: the checksum does not match; the file is damaged.")
        return int(found["round"]), _put_tensors(found["state"], open_tensors(tensors))
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


def newest_json(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest readable checkpoint as (rounds done, state), with a place instead of each tensor; None without any."""
    for path in sorted(folder.glob("round-*.json"), reverse=True):
        with suppress(CheckpointError, *UNREADABLE):  # `load_newest` reports it
            found = _read_json(path)
            return int(found["round"]), dict(found["state"])
    return None


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint, after verifying its format and checksum."""
    found: dict[str, Any] = json.loads(path.read_bytes())
    checksum = found.pop("checksum")
    if found["format"] != FORMAT:
        raise CheckpointError(f"{path}: format {found['format']}; this version of fedal reads format {FORMAT}.")
    if checksum != _checksum(found):
        raise CheckpointError(f"{path}: the checksum does not match; the file is damaged.")
    return found


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _drop_old(folder: Path, round_: int) -> None:
    newest = f"round-{round_:07}.json"
    found = sorted(folder.glob("round-*.json"))
    usable = [path for path in found if path.name <= newest]  # later ones are damaged: the run resumed before them
    kept = usable[-KEEP:]
    dropped = [path for path in found if path not in kept]
    tensors = [path for path in folder.glob(f"round-*{TENSORS}") if path.with_suffix(".json") not in kept]
    for path in [*dropped, *tensors, *folder.glob(f"{TEMPORARY}round-*")]:  # the last ones are left by a killed save
        path.unlink()


def _take_tensors(value: Any, name: str, take: Callable[[str, Tensor], Any]) -> Any:
    """The same structure, with each tensor replaced by what `take` returns for its path and value."""
    if callable(value):
        value = value()
    if isinstance(value, Tensor):
        return {TENSOR: take(name, value)}
    if isinstance(value, dict):
        return {
            str(key): _take_tensors(part, f"{name}/{key}" if name else str(key), take) for key, part in value.items()
        }
    return value


def _put_tensors(value: Any, content: Tensor) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return read_tensor(content, value[TENSOR])
        return {key: _put_tensors(part, content) for key, part in value.items()}
    return value
