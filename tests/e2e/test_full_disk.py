"""A disk that fills up at a site or the server: a clear error, no partial files, and the same bits after resuming."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deployments import SITES, Rehearsal, wait_for
from fedal.records.checkpoint import load_checkpoint

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("mount") is None,
        reason="needs root and mount to create small disks",
    ),
]


class SmallDisk:
    """A file system of two megabytes that can be filled and emptied."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with suppress(OSError), open(self._ballast, "wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def empty(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def intact_checkpoints(folder: Path) -> int:
    """The number of checkpoints; raises if one is damaged."""
    return len([load_checkpoint(path) for path in (folder / "checkpoints").glob("round-*.json")])


def test_a_full_disk_stops_a_site_or_the_server_with_a_clear_error_and_costs_no_bit(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, {"deadline_s": 5.0}, rounds=150, checkpoint_every=5, options={"tau": 1})
    with small_disk(tmp_path / "client-01-state") as site_disk, small_disk(tmp_path / "server") as server_disk:
        processes = {"server": rehearsal.serve_process()} | {site: rehearsal.join_process(site) for site in SITES}
        start = {"server": rehearsal.serve_process, "client-01": lambda: rehearsal.join_process("client-01")}
        try:
            for name, disk in (("client-01", site_disk), ("server", server_disk)):
                before = rehearsal.committed()
                wait_for(lambda before=before: rehearsal.committed() > max(before, 0))
                disk.fill()
                assert processes[name].wait(60) == 1
                said = (tmp_path / f"{name}.log").read_text().splitlines()[-1]
                assert said.startswith("error: ") and "No space left" in said and str(disk.path.name) in said, said
                assert intact_checkpoints(disk.path) in (2, 3)
                assert list(disk.path.rglob(".tmp-*")) == []
                disk.empty()
                processes[name] = start[name]()
            assert {name: process.wait(120) for name, process in processes.items()} == dict.fromkeys(processes, 0)
        finally:
            for process in processes.values():
                process.kill()
        assert rehearsal.deployed() == rehearsal.alone()
