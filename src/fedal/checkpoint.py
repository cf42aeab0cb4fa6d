"""Atomic save and verified load of the state of all roles at the end of a round.

A checkpoint is two files: the tensors as safetensors, then a JSON file with everything else and the checksums. The
JSON is the commit: tensors without it are an unfinished save. The two newest are kept; a damaged one is refused by
name and the older one used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedal.durable import TEMPORARY, sync_folder, write_atomically
from fedal.errors import CheckpointError, NonFiniteError
from fedal.finite import is_finite
from fedal.learners.base import State

FORMAT = 1
KEEP = 2


def save_checkpoint(folder: Path, round_: int, state: dict[str, Any]) -> None:
    """Saves `state` (nested dicts of tensors and JSON values) as the checkpoint after `round_` rounds."""
    tensors: dict[str, Tensor] = {}
    rest = _take_tensors(state, "", tensors)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise NonFiniteError(f"{name} is not finite after round {round_}; it was not saved.")
    blob = _as_bytes(tensors)
    body = {"format": FORMAT, "round": round_, "tensors_sha256": hashlib.sha256(blob).hexdigest(), "state": rest}
    if not folder.exists():
        folder.mkdir()
        sync_folder(folder.parent)
    write_atomically(folder / f"round-{round_:07}.safetensors", blob)
    text = json.dumps({**body, "checksum": _checksum(body)}, indent=1)
    write_atomically(folder / f"round-{round_:07}.json", text.encode())
    _drop_old(folder, round_)


def save_model(path: Path, state: State) -> None:
    """The trained arrays of a learner: its state's "model", or every tensor in a state that names no such part."""
    tensors: dict[str, Tensor] = {}
    _take_tensors(state.get("model", state), "", tensors)
    write_atomically(path, _as_bytes(tensors))


def load_newest(folder: Path, warn: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
    """The newest sound checkpoint as (rounds done, state); None when there is none at all."""
    found = sorted(folder.glob("round-*.json"), reverse=True)
    for path in found:
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            warn(f"{error} Using the one before it." if path != found[-1] else str(error))
    if found:
        raise CheckpointError(f"{folder}: none of the {len(found)} checkpoints is sound. Start the run anew elsewhere.")
    return None


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Verifies checksums before anything is used. Only arrays and JSON are read, nothing is executed."""
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop("checksum")
        blob = path.with_suffix(".safetensors").read_bytes()
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {content['format']}, this version of fedal reads {FORMAT}.")
        if checksum != _checksum(content):
            raise CheckpointError(f"{path}: the checksum does not match, the file is damaged.")
        if hashlib.sha256(blob).hexdigest() != content["tensors_sha256"]:
            raise CheckpointError(f"{path.with_suffix('.safetensors')}: the checksum does not match, it is damaged.")
        return int(content["round"]), _put_tensors(content["state"], load_tensors(blob))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None


def _as_bytes(tensors: dict[str, Tensor]) -> bytes:
    """Clones: safetensors refuses tensors that share memory, as tied weights do."""
    return save_tensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _drop_old(folder: Path, round_: int) -> None:
    newest = f"round-{round_:07}.json"
    found = sorted(folder.glob("round-*.json"))
    damaged = [path for path in found if path.name > newest]  # newer, and yet the run went on from an older one
    for path in damaged + [path for path in found if path.name <= newest][:-KEEP]:
        path.unlink()
    committed = {path.stem for path in folder.glob("round-*.json")}
    for path in folder.glob("round-*.safetensors"):
        if path.stem not in committed:
            path.unlink()
    for path in folder.glob(f"{TEMPORARY}round-*"):  # of a save that was killed
        path.unlink()


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The same structure with every tensor moved to `tensors` under its path."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a": {"b": ...}, "a/b": ...}
            name += "'"
        tensors[name] = value
        return {"__tensor__": name}
    if isinstance(value, dict):
        return {
            str(key): _take_tensors(part, f"{name}/{key}" if name else str(key), tensors) for key, part in value.items()
        }
    return value


def _put_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"__tensor__"}:
            return tensors[value["__tensor__"]]
        return {key: _put_tensors(part, tensors) for key, part in value.items()}
    return value
