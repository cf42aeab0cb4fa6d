"""What an operator relies on: the log, the status, and a stop that loses nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from deployments import SITES, Rehearsal, Stranger, wait_for
from fedal.deploy.service import log_line


def test_the_status_names_stragglers(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, {"deadline_s": 4.0})
    with rehearsal.service() as service:
        silent = Stranger(rehearsal.address, rehearsal.invitation("client-00"))
        silent.hello("client-00")
        for site in SITES[1:]:
            rehearsal.join_in_thread(site, patience_s=0.0)

        def names_only_the_silent_one() -> bool:
            state = service.callbacks.status().state
            return "training, waiting" in state and "s for client-00" in state and SITES[1] not in state

        wait_for(names_only_the_silent_one)
        silent.close()


@pytest.mark.processes
def test_a_stopped_server_has_committed_its_round_and_logged_nothing_but_json(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, rounds=100, checkpoint_every=10**6, options={"tau": 1})
    sites = [rehearsal.join_process(site) for site in SITES]
    server = rehearsal.serve_process()
    log = tmp_path / "server.log"
    try:
        wait_for(lambda: log.exists() and log.read_text().count('"joined"') == 3)
        with socket.create_connection(("127.0.0.1", rehearsal.port), 10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # refused, without a line in the log
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 130
        events = [json.loads(line) for line in log.read_text().splitlines()]
        assert [event["event"] for event in events if "stop" in event["event"]] == ["stopping", "stopped"]
        assert events[-1]["text"].startswith(f"stopped after round {rehearsal.committed()}.")
        server = rehearsal.serve_process()
        assert [process.wait(120) for process in (server, *sites)] == [0, 0, 0, 0]
    finally:
        for process in (server, *sites):
            process.kill()
    assert "Is the server running? Trying again." in (tmp_path / "client-00.log").read_text()
    assert rehearsal.deployed() == rehearsal.alone()


def test_log_lines_of_two_threads_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = open(tmp_path / "log", "wb", buffering=0)  # noqa: SIM115 - closed with the wrapper
    with io.TextIOWrapper(raw, line_buffering=True, write_through=True) as file:  # type: ignore[arg-type]  # as stderr is
        monkeypatch.setattr("sys.stderr", file)
        writers = [threading.Thread(target=lambda: [log_line("x", n=n) for n in range(500)]) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert len([json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]) == 2000


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_failed_log_write_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    file = os.fdopen(os.dup(descriptor), "w", buffering=1)
    monkeypatch.setattr("sys.stderr", file)
    log_line("joined", site="client-00")
    monkeypatch.undo()
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # so that the rest of the buffer can be flushed
    file.close()
    os.close(descriptor)
