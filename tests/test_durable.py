"""Files that survive a crash."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedal import durable
from fedal.durable import RecordFile, open_in_place, private_mode, replacing, write_atomically
from fedal.errors import CheckpointError


def failing(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_written_content_can_be_read_back(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"one")
    write_atomically(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_while_writing_leaves_only_the_old_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(durable.os, step, failing)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a", b"old")

    class FullDisk:
        def __init__(self, path: Path, mode: str, **how: Any) -> None:
            self._file = open(path, mode, **how)  # noqa: SIM115

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, content: bytes) -> None:
            self._file.write(content[: len(content) // 2])
            failing()

    monkeypatch.setattr(durable, "open", FullDisk, raising=False)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", b"new content")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == []


def test_content_is_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    monkeypatch.setattr(durable.os, "fsync", watched_fsync)
    monkeypatch.setattr(durable.os, "replace", lambda *names: (order.append("rename"), replace(*names)))
    write_atomically(tmp_path / "a", b"x")
    assert order == ["file", "rename", "folder"]


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_one_object_per_line_and_visible_at_once(tmp_path: Path) -> None:
    record = RecordFile(tmp_path / "metrics.jsonl")
    for round_ in range(3):
        record.append({"round": round_})
        assert rows(tmp_path / "metrics.jsonl")[-1] == {"round": round_}
    assert record.sync() == (tmp_path / "metrics.jsonl").stat().st_size
    record.close()


def test_a_record_is_truncated_to_the_length_in_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record = RecordFile(path)
    record.append({"round": 1})
    length = record.sync()
    record.append({"round": 2})
    record.close()
    with open(path, "ab") as file:
        file.write(b'{"round": 3, "half of a ro')
    record = RecordFile(path, length)
    assert rows(path) == [{"round": 1}]
    record.append({"round": 2})
    assert record.sync() == path.stat().st_size
    record.close()
    assert rows(path) == [{"round": 1}, {"round": 2}]


def test_a_new_record_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("left over\n")
    RecordFile(path).close()
    assert path.read_bytes() == b""


def test_a_record_that_lost_rows_is_refused_rather_than_padded_with_zeros(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl has 13 bytes; it had 26 .* rows are missing"):
        RecordFile(path, 26)
    assert path.read_bytes() == b'{"round": 1}\n'


def test_a_secret_is_private_before_its_first_byte(tmp_path: Path) -> None:
    stale = tmp_path / f"{durable.TEMPORARY}key"
    stale.write_bytes(b"of a killed process")
    stale.chmod(0o644)
    before = os.umask(0)
    try:
        with replacing(tmp_path / "key", mode=0o600) as file:
            assert os.stat(file.fileno()).st_mode & 0o777 == 0o600
            assert os.stat(file.fileno()).st_size == 0
            file.write(b"secret")
    finally:
        os.umask(before)
    assert (tmp_path / "key").read_bytes() == b"secret"


@pytest.mark.parametrize("change", [lambda path: RecordFile(path, 10), lambda path: open_in_place(path, os.O_RDWR)])
def test_a_file_with_another_name_elsewhere_is_not_changed(tmp_path: Path, change: Callable[[Path], object]) -> None:
    precious, record = tmp_path / "precious", tmp_path / "metrics.jsonl"
    precious.write_bytes(b"x" * 90)
    os.link(precious, record)
    with pytest.raises(CheckpointError, match=r"one of 2 hard links .*`cp .*metrics.jsonl.copy && mv"):
        change(record)
    assert precious.stat().st_size == 90
    shutil.copy(record, tmp_path / "copy")  # as the message advises
    os.replace(tmp_path / "copy", record)
    RecordFile(record, 10).close()
    assert (precious.stat().st_size, record.stat().st_size) == (90, 10)


@pytest.mark.parametrize(("before", "after"), [(None, 0o600), (0o644, 0o644), (0o600, 0o600), (0o755, 0o644)])
def test_a_private_file_is_open_only_if_its_owner_opened_it(tmp_path: Path, before: int | None, after: int) -> None:
    path = tmp_path / "model"
    if before is not None:
        path.touch()
        path.chmod(before)
    mask = os.umask(0o022)
    try:
        write_atomically(path, b"model", private_mode(path))
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == after


def test_a_record_does_not_follow_a_link_out_of_its_folder(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 90)
    (tmp_path / "metrics.jsonl").symlink_to(precious)
    with pytest.raises(CheckpointError, match="symbolic link"):
        RecordFile(tmp_path / "metrics.jsonl", 10)
    assert precious.stat().st_size == 90
