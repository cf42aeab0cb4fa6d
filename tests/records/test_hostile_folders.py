"""A run folder from someone else, and a state folder that others must not read."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedal.config import Config
from fedal.durable import RecordFile, make_folder, write_atomically
from fedal.errors import FedalError
from fedal.records.checkpoint import save_checkpoint
from fedal.records.folder import RunFolder
from fedal.simulate.run import resume, run

NAMES = ("config.toml", "metrics.jsonl", "clients.jsonl", "partition.npz", "environment.json", "summary.json",
         "failure.json", "scores.json", "run.lock")  # fmt: skip
FOLDERS = ("checkpoints", "models")
REFUSED = ("metrics.jsonl", "clients.jsonl", "run.lock", *FOLDERS)  # these are opened, not replaced


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that can be extended by one iteration."""
    config = Config(method="fedmd", clients=2, rounds=1, batch_size=8, checkpoint_every=1, options={"tau": 1})
    return run(config, tmp_path_factory.mktemp("hostile") / "run").path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*NAMES, *FOLDERS, "temporary files"])
def test_extending_a_hostile_folder_writes_through_no_link(finished: Path, tmp_path: Path, name: str) -> None:
    """The links lead to content that resuming accepts. Either it names the link, or it replaces it by a file."""
    folder, elsewhere, said = tmp_path / "run", tmp_path / "elsewhere", ""
    shutil.copytree(finished, folder)
    elsewhere.mkdir()
    names = [name]
    if name == "temporary files":
        inner = [f"checkpoints/.tmp-round-0000002{end}" for end in (".json", ".tensors")]
        names = [*(f".tmp-{file}" for file in NAMES), *inner, "models/.tmp-client-00.safetensors"]
    for number, file in enumerate(names):
        link, target = folder / file, elsewhere / str(number)
        if link.exists():
            shutil.move(link, target)
        else:
            target.write_bytes(b"do not touch")
        link.symlink_to(target)
    before = contents(elsewhere)
    try:
        resume(folder, iterations=2)
    except FedalError as error:
        said = str(error)
    assert contents(elsewhere) == before
    assert said == "" or (name in said and "symbolic link" in said)
    assert (said == "") == (name not in REFUSED)


@pytest.mark.parametrize("name", NAMES)
def test_extending_a_hostile_folder_writes_through_no_hard_link(finished: Path, tmp_path: Path, name: str) -> None:
    folder, elsewhere, said = tmp_path / "run", tmp_path / "elsewhere", ""
    shutil.copytree(finished, folder)
    (folder / name).touch()
    os.link(folder / name, elsewhere)
    before = elsewhere.read_bytes()
    try:
        resume(folder, iterations=2)
    except FedalError as error:
        said = str(error)
    assert elsewhere.read_bytes() == before
    assert (name in said and "hard links" in said) == (name in REFUSED)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_private_folder_is_closed_to_others_and_so_is_all_that_is_written_in_it(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        folder = RunFolder(tmp_path / "state")
        folder.create(private=True)
        with folder.locked():
            write_atomically(folder.config, b"content")
            RecordFile(folder.metrics).close()
            save_checkpoint(folder.checkpoints, 1, {"round": 1})
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.path.rglob("*") if path.is_file()} == {"0o600"}
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder.path, folder.checkpoints)} == {"0o700"}
    assert not folder.open_to_others


def test_files_of_a_private_folder_are_private_from_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after a moment in which others could open them."""
    folder, modes, original = RunFolder(tmp_path / "state"), list[int](), os.open

    def watched(name: str, flags: int, mode: int = 0o777) -> int:
        descriptor = original(name, flags, mode)
        if flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    with umask(0):
        folder.create(private=True)
        with folder.locked():
            save_checkpoint(folder.checkpoints, 1, {"round": 1})
            RecordFile(folder.metrics).close()
    assert modes == [0o600] * 4, "the lock, both files of a checkpoint, the record"


def test_an_empty_folder_is_closed_and_others_are_reported(tmp_path: Path) -> None:
    with umask(0o022):
        made, used = RunFolder(tmp_path / "made"), RunFolder(tmp_path / "used")
        made.path.mkdir()
        used.path.mkdir()
        (used.path / "thesis.txt").touch()
        made.create(private=True)
        used.create(private=True)
    assert not made.open_to_others and f"chmod 700 {used.path}" in used.open_to_others


def test_other_files_keep_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    with umask(0o002):
        folder = tmp_path / "run"
        folder.mkdir()
        write_atomically(folder / "a", b"")
        make_folder(folder / "sub")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o664
    assert stat.S_IMODE((folder / "sub").stat().st_mode) == 0o775


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_in_a_hostile_folder_does_not_block(finished: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    said: list[str] = []

    def attempt() -> None:
        try:
            resume(folder, iterations=2)
            said.append("")  # a file that is only written is replaced
        except FedalError as error:
            said.append(str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(30)
    assert said and (name in said[0] or not said[0])
