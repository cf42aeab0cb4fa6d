"""Shared by all tests: helper modules next to this file can be imported; torch is seeded and uses one thread."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import fedal.deploy  # noqa: F401 - before anybody imports gRPC, whose TLS it restricts
from no_processes import no_processes

torch.manual_seed(0)  # for models created during test collection

# A loaded machine is no defect: examples have no time limit, as in Hypothesis' own profile for CI.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _one_intra_op_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh current directory, on the import path, without datasets."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")
    monkeypatch.setenv("FEDAL_DATA", str(tmp_path / "data"))
    return tmp_path / "here"


@pytest.fixture
def custom_module(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    names = []

    def write(name: str, text: str) -> None:
        names.append(name)
        (empty_folder / f"{name}.py").write_text(textwrap.dedent(text))

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Also covers setup and teardown, where module fixtures start their processes."""
    with nullcontext() if item.get_closest_marker("processes") else no_processes():
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names every skipped test; the usual summary only counts them."""
    for report in terminalreporter.getreports("skipped"):
        terminalreporter.write_line(f"not run: {report.nodeid}")
