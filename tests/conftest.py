"""Shared by all tests: helper modules beside this file can be imported, torch works on one thread, and is seeded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import fedal.engine.grpc  # noqa: F401 - before anybody imports gRPC, whose TLS it restricts

torch.manual_seed(0)  # models that are made while tests are collected


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _one_intra_op_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every test that was not run, by name: the usual summary only counts them."""
    for report in terminalreporter.getreports("skipped"):
        terminalreporter.write_line(f"not run: {report.nodeid}")
