"""Servers that misbehave: a site ends with a clear error or keeps its best model, and saves nothing untrained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedal.deploy.refusals import Code
from hostile_servers import BEHAVIOURS, FINISHES, PUBLIC_SETS, WEIGHTS, HostileServer, join, with_fedavg

CHECKED = ("gradients of 1e6", "wrong means and gradients of 1e6, late", "finished at once, after 0 rounds",
           "tau of 10^9", "a refusal with escape codes", "bytes that are not a message")  # fmt: skip
CONTROL = re.compile(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def check(folder: Path, server: HostileServer, expected: str, *words: str) -> None:
    """Runs `fedal join` to its end. A traceback would be an exception here."""
    answer, saved = join(folder, server, *words), folder / "trained.safetensors"
    assert not CONTROL.search(answer.err), answer.err
    assert len(answer.err) < 10_000
    if expected == FINISHES:
        assert (answer.code, saved.exists()) == (0, True), answer.err
    else:
        assert expected in answer.err
        assert re.search("^error: .+", answer.err, re.MULTILINE)
        assert answer.code in (1, 2)
        assert not saved.exists()


@pytest.mark.processes
@pytest.mark.parametrize("name", CHECKED)
def test_a_site_outlasts_a_hostile_server(tmp_path: Path, name: str) -> None:
    behave, expected = BEHAVIOURS[name]
    with HostileServer(behave) as server:
        check(tmp_path, server, expected)


@pytest.mark.soak
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_site_outlasts_every_hostile_server(tmp_path: Path, name: str) -> None:
    behave, expected = BEHAVIOURS[name]
    with HostileServer(behave) as server:
        check(tmp_path, server, expected)


@pytest.mark.soak
@pytest.mark.parametrize("name", PUBLIC_SETS)
def test_a_site_refuses_a_public_set_that_is(tmp_path: Path, name: str) -> None:
    with HostileServer(chunks=PUBLIC_SETS[name]) as server:
        check(tmp_path, server, Code.PUBLIC_SET)


@pytest.mark.soak
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_site_that_shares_its_weights_outlasts_a_hostile_server(tmp_path: Path, name: str) -> None:
    behave, expected = WEIGHTS[name]
    with HostileServer(with_fedavg(behave)) as server:
        check(tmp_path, server, expected, "--allow", "parameters,architecture")
