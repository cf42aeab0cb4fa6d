"""Saves the state of all roles atomically at the end of a round, and verifies it when loading.

A checkpoint is two files: the tensors, then a JSON file with everything else, the position of each tensor, and the
checksums. Writing the JSON file commits the checkpoint: tensors without it are an unfinished save. The two newest
checkpoints are kept. If the newest is damaged, loading reports its name and uses the older one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from fedal.durable import TEMPORARY, make_folder, read_bounded, replacing, write_atomically
from fedal.errors import CheckpointError, FedalError, NonFiniteError
from fedal.finite import is_finite
from fedal.learners.base import State
from fedal.records.tensor_file import open_tensors, read_tensor, write_tensor

FORMAT = 2
NAME = re.compile(r"round-(\d{7,})\.json")
KEEP = 2
TENSOR = "__tensor__"
TENSORS = ".tensors"
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError, MemoryError)
"""What damaged or foreign content raises; RuntimeError includes RecursionError, for JSON that is nested too deeply."""


def save_checkpoint(folder: Path, round_: int, state: dict[str, Any], *, keep: int = KEEP) -> None:
    """Saves `state` (nested dicts of tensors and JSON values) as the checkpoint after `round_` rounds.

    A function in `state` is called once, when its part is written, so the states of many clients are never in memory
    together.
    """
    make_folder(folder)
    with replacing(folder / f"round-{round_:07}{TENSORS}") as file:

        def write(name: str, tensor: Tensor) -> dict[str, Any]:
            if tensor.is_floating_point() and not is_finite(tensor):
                raise NonFiniteError(
                    f"{name} has non-finite values after round {round_}; nothing was saved. A smaller lr usually helps."
                )
            return write_tensor(file, name, tensor)

        rest = take_tensors(state, "", write)
        json.dumps(rest)  # raises for values that are neither tensors nor JSON, before any file is in place
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    body = {"format": FORMAT, "round": round_, "tensors_sha256": sha256, "state": rest}
    text = json.dumps({**body, "checksum": _checksum(body)})  # not indented: that takes ten times as long
    write_atomically(folder / f"round-{round_:07}.json", text.encode())
    _drop_old(folder, round_, keep)


def save_model(path: Path, state: State, mode: int | None = None) -> None:
    """Writes the trained arrays of a learner as safetensors."""
    write_atomically(path, _model_bytes(state), mode)


def model_digest(state: State) -> str:
    """The sha256 of the file that `save_model` would write."""
    return hashlib.sha256(_model_bytes(state)).hexdigest()


def _model_bytes(state: State) -> bytes:
    """The "model" part of a learner's state, or all its tensors if it has no such part, as safetensors."""
    tensors: dict[str, Tensor] = {}

    def take(name: str, tensor: Tensor) -> None:
        while name in tensors:  # {"a": {"b": ...}, "a/b": ...} has two tensors with one path
            name += "'"
        tensors[name] = tensor.detach().cpu().clone().contiguous()  # safetensors rejects tensors that share memory

    take_tensors(state.get("model", state), "", take)
    return save_tensors(tensors)


def load_newest(folder: Path, warn: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
    """The newest intact checkpoint as (rounds done, state); None if the folder has no checkpoint."""
    found = list(saved_rounds(folder).values())
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
        found = _verified(path)
        state = put_tensors(found["state"], open_tensors(path.with_suffix(TENSORS)))
        if not isinstance(state, dict):
            raise CheckpointError(f"{path}: holds no state.")
        return int(found["round"]), state
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


def saved_rounds(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder, newest first, whether or not they are intact. Other files do not count."""
    named = {path: NAME.fullmatch(path.name) for path in folder.glob("round-*.json") if path.is_file()}
    return dict(sorted(((int(name[1]), path) for path, name in named.items() if name), reverse=True))


def verified_rounds(folder: Path, warn: Callable[[str], None]) -> list[int]:
    """The rounds, newest first, whose checkpoints have the checksums that they were written with."""
    rounds = []
    for round_, path in saved_rounds(folder).items():
        try:
            _verified(path)
            rounds.append(round_)
        except CheckpointError as error:
            warn(str(error))
        except UNREADABLE as error:
            warn(f"{path}: cannot be read ({type(error).__name__}: {error}).")
    return rounds


@contextmanager
def fitting(where: Path) -> Iterator[None]:
    """For reading a state into what it was saved from: what the state of another run raises becomes CheckpointError."""
    try:
        yield
    except FedalError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(
            f"{where}: the saved state does not fit this run ({type(error).__name__}: {error}). It may belong to "
            "another run, or to another release of fedal."
        ) from None


def drop_checkpoints(folder: Path, after: int, before: int | None = None) -> None:
    """Removes the checkpoints of the rounds between two others: the run went back, and they are not part of it."""
    for round_, path in saved_rounds(folder).items():
        if after < round_ and (before is None or round_ < before):
            path.unlink()
            path.with_suffix(TENSORS).unlink(missing_ok=True)


def newest_json(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest readable checkpoint as (rounds done, state), with a place instead of each tensor; None without any."""
    return next(readable_json(folder), None)


def readable_json(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same of every readable checkpoint, newest first."""
    for path in saved_rounds(folder).values():
        with suppress(CheckpointError, *UNREADABLE):  # `load_newest` reports it
            found = _read_json(path)
            yield int(found["round"]), dict(found["state"])


def _verified(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint, after verifying the checksums of both files."""
    found, tensors = _read_json(path), path.with_suffix(TENSORS)
    with open(tensors, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != found["tensors_sha256"]:
        raise CheckpointError(f"{tensors}: the checksum does not match; the file is damaged.")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint, after verifying its format and checksum."""
    if not (path.is_file() and path.with_suffix(TENSORS).is_file()):  # a pipe would block
        raise CheckpointError(f"{path}: this, or the file of its tensors, is missing or no file.")
    found: dict[str, Any] = json.loads(read_bounded(path))
    checksum = found.pop("checksum")
    if found["format"] != FORMAT:
        raise CheckpointError(f"{path}: format {found['format']}; this version of fedal reads format {FORMAT}.")
    if checksum != _checksum(found):
        raise CheckpointError(f"{path}: the checksum does not match; the file is damaged.")
    if (name := NAME.fullmatch(path.name)) and int(name[1]) != found["round"]:
        raise CheckpointError(f"{path}: holds the state after round {found['round']}; it was renamed.")
    return found


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _drop_old(folder: Path, round_: int, keep: int) -> None:
    found = saved_rounds(folder)
    usable = [saved for saved in found if saved <= round_]  # later ones are damaged: the run resumed before them
    kept = [found[saved] for saved in usable[:keep]]
    dropped = [path for path in found.values() if path not in kept]
    ours = [path for path in folder.glob(f"round-*{TENSORS}") if NAME.fullmatch(path.with_suffix(".json").name)]
    tensors = [path for path in ours if path.with_suffix(".json") not in kept]
    for path in [*dropped, *tensors, *folder.glob(f"{TEMPORARY}round-*")]:  # the last ones are left by a killed save
        path.unlink()


def take_tensors(value: Any, name: str, take: Callable[[str, Tensor], Any]) -> Any:
    """The same structure, with each tensor replaced by what `take` returns for its path and value."""
    if callable(value):
        value = value()
    if isinstance(value, Tensor):
        return {TENSOR: take(name, value)}
    if isinstance(value, dict):
        return {
            str(key): take_tensors(part, f"{name}/{key}" if name else str(key), take) for key, part in value.items()
        }
    return value


def put_tensors(value: Any, content: Tensor) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return read_tensor(content, value[TENSOR])
        return {key: put_tensors(part, content) for key, part in value.items()}
    return value
