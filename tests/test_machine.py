"""Linux and macOS are supported, Windows gets a clear error. Systems are simulated by removing what they lack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedal
from fedal.cli.app import main
from fedal.deploy.service import serve
from fedal.deploy.site import join
from fedal.engine.threads import thread_workers
from fedal.errors import ConfigError
from fedal.machine import available_cores, peak_memory

ROOT = Path(__file__).parents[1]
SENTENCE = "fedal runs on Linux and macOS. On Windows, use it inside WSL2: wsl --install"


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)


@pytest.mark.parametrize("words", [["run"], ["resume", "runs/x"], ["methods"], ["--help"], []])
def test_the_cli_explains_in_one_sentence_that_windows_is_not_supported(
    words: list[str], windows: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedal", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {SENTENCE}\n"


NOTHING: Any = None
CALLS: dict[str, Callable[[], object]] = {
    "run": lambda: fedal.run(NOTHING),
    "resume": lambda: fedal.resume("nowhere"),
    "serve": lambda: serve(NOTHING),
    "join": lambda: join(NOTHING),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_the_library_also_explains_that_windows_is_not_supported(call: str, windows: None) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(SENTENCE)}$"):
        CALLS[call]()


@pytest.mark.processes
def test_every_module_can_be_imported_without_modules_that_windows_lacks() -> None:
    code = """
import importlib, os, pkgutil, sys
import grpc, matplotlib.pyplot, multiprocessing.pool, sklearn, torch, typer  # their own imports are not under test
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
del os.sched_getaffinity
import fedal
for module in pkgutil.walk_packages(fedal.__path__, "fedal."):
    importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_needs_nothing_that_macos_lacks(macos: None, tmp_path: Path) -> None:
    assert available_cores() == os.cpu_count()
    settings: dict[str, Any] = dict(dataset="digits", clients=2, models="mlp-small", iterations=2)
    assert fedal.run(fedal.Config(method="fedmd", **settings), tmp_path / "run").is_complete
    assert fedal.compare(["local"], 1, tmp_path / "compared", settings).rows[0].runs


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not report a process's cores")
def test_only_available_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7})
    assert available_cores() == 3
    with thread_workers(0) as workers:
        assert workers._pool._max_workers == 3


def test_peak_memory_is_in_bytes_on_both_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    before = peak_memory()
    assert 10e6 < before < 100e9
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "darwin")  # which reports bytes
    assert peak_memory() >= kilobytes and peak_memory() < before


def test_only_one_module_depends_on_the_system() -> None:
    pattern = re.compile(r"sched_getaffinity|^import (fcntl|resource)\b|^from (fcntl|resource)\b", re.M)
    files = [path for folder in ("src", "benchmarks", "studies") for path in (ROOT / folder).rglob("*.py")]
    found = {path.name for path in files if pattern.search(path.read_text(encoding="utf-8"))}
    assert found == {"machine.py"}
