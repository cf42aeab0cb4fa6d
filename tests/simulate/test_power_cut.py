"""A power cut after any single step of saving loses unsynced data, but no acknowledged round."""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedal import durable
from fedal.records.checkpoint import load_newest, save_checkpoint

Step = tuple[str, str, Any]
"""(operation, file, argument)"""


class Recorder:
    """Passes all operations on and records those on the disk, and the acknowledged rounds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Step] = []
        steps, fsync, replace, unlink, mkdir = self.steps, os.fsync, os.replace, Path.unlink, Path.mkdir

        def watched_open(path: Path, mode: str, **how: Any) -> Any:
            file = builtins.open(path, mode, **how)  # noqa: SIM115 - closed by _Watched
            write = file.write
            steps.append(("create", str(path), None))
            return _Watched(file, lambda content: steps.append(("write", str(path), bytes(content))) or write(content))

        def watched_fsync(descriptor: int) -> None:
            fsync(descriptor)
            steps.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}"), None))

        def watched_replace(source: Path, target: Path) -> None:
            replace(source, target)
            steps.append(("rename", str(source), str(target)))

        def watched_unlink(path: Path, missing_ok: bool = False) -> None:
            existed = path.exists()
            unlink(path, missing_ok=missing_ok)
            if existed:
                steps.append(("unlink", str(path), None))

        def watched_mkdir(path: Path, *arguments: Any, **keywords: Any) -> None:
            mkdir(path, *arguments, **keywords)
            steps.append(("create", str(path), None))

        monkeypatch.setattr(durable, "open", watched_open, raising=False)
        monkeypatch.setattr(durable.os, "fsync", watched_fsync)
        monkeypatch.setattr(durable.os, "replace", watched_replace)
        monkeypatch.setattr(Path, "unlink", watched_unlink)
        monkeypatch.setattr(Path, "mkdir", watched_mkdir)


class _Watched:
    def __init__(self, file: Any, write: Callable[[bytes], Any]) -> None:
        self._file, self.write = file, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Disk:
    """Files by name. Content lasts once its file is synced, a name once its folder is (or immediately, if early)."""

    def __init__(self, *, names_are_early: bool) -> None:
        self._early = names_are_early
        self._content: dict[int, bytes] = {}
        self._synced: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._kept_names: dict[str, int] = {}
        self._count = itertools.count()

    def apply(self, step: Step) -> None:
        kind, path, more = step
        if kind == "create":
            self._names[path] = next(self._count)
            self._content[self._names[path]] = b""
        elif kind == "write":
            self._content[self._names[path]] += more
        elif kind == "rename":
            self._names[more] = self._names.pop(path)
        elif kind == "unlink":
            del self._names[path]
        elif path in self._names and Path(path).suffix:
            self._synced[self._names[path]] = self._content[self._names[path]]
        if kind == "sync" and not Path(path).suffix:
            inside = {name: number for name, number in self._names.items() if os.path.dirname(name) == path}
            kept = {name: number for name, number in self._kept_names.items() if os.path.dirname(name) != path}
            self._kept_names = kept | inside

    def after_a_power_cut(self) -> Iterator[tuple[str, bytes]]:
        names = self._names if self._early else self._kept_names
        for name, number in names.items():
            if os.path.dirname(name) in names:
                yield name, self._synced.get(number, b"")


@pytest.mark.parametrize("names_are_early", [False, True])
def test_no_acknowledged_round_is_lost_whenever_the_power_fails(
    names_are_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts the power after every step of 25 saves. Early names: folders may reach the disk before their files."""
    saved = tmp_path / "run" / "checkpoints"
    saved.parent.mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        for round_ in range(25):
            save_checkpoint(saved, round_, {"w": torch.full((3,), float(round_)), "round": round_})
            recorder.steps.append(("acknowledged", "", round_))
    disk, acknowledged, cuts = Disk(names_are_early=names_are_early), -1, 0
    for step in recorder.steps:
        if step[0] == "acknowledged":
            acknowledged = step[2]
        else:
            disk.apply(step)
        found = recovered(disk, tmp_path / str(cuts))
        assert found >= acknowledged, f"cut {cuts}, after {step}"
        cuts += 1
    assert acknowledged == 24 and cuts > 250


def recovered(disk: Disk, folder: Path) -> int:
    """The newest round that can be read after the power cut; -1 if there is none."""
    folder.mkdir()
    for name, content in disk.after_a_power_cut():
        (folder / Path(name).name).write_bytes(content)
    newest = load_newest(folder, lambda text: None) if any(folder.glob("round-*.json")) else None
    if newest is None:
        return -1
    round_, state = newest
    assert torch.equal(state["w"], torch.full((3,), float(round_))) and state["round"] == round_
    return round_
