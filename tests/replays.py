"""Replays a deployed run in one process, from the server's record of who took part in which exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deployments import Rehearsal, digest
from fedal.engine.loop import Federation
from fedal.records.checkpoint import save_model
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import prepare_split
from splits import InOrder


class _Lost(Exception):
    """The server lost this round."""


def replayed(rehearsal: Rehearsal) -> dict[str, str]:
    """sha256 of every client's weights at the end of the replayed run."""
    torch.set_num_threads(1)  # as every site does
    lines = (rehearsal.folder / "server/participation.jsonl").read_text().splitlines()
    attempts: dict[int, list[dict[str, Any]]] = {}
    for line in map(json.loads, lines):
        attempts.setdefault(line["round"], []).append(line)
    found = assemble(rehearsal.config, prepare_split(rehearsal.config), InOrder())
    for t in range(rehearsal.config.total_rounds):
        tried = attempts.get(t, [])
        for attempt in tried:
            if "lost" in attempt:
                _lose(found.federation, t, attempt["missed"], attempt["lost"])
        missed = next((attempt["missed"] for attempt in tried if "lost" not in attempt), {})
        found.federation.run_round(t, lambda n, exchange, missed=missed: exchange >= missed.get(n, 10**9))
    digests = {}
    for name, learner in found.learners.items():
        path = Path(rehearsal.folder / f"replayed-{name}.safetensors")
        save_model(path, learner.state_dict())
        digests[name] = digest(path)
    return digests


def _lose(federation: Federation, t: int, missed: Mapping[str, int], answered: int) -> None:
    """A round that the server lost after so many answered exchanges: its half goes back, the clients do not."""
    start, seen = federation.server.state_dict(), 0

    def lose(uploads: object) -> None:
        nonlocal seen
        if seen == answered:
            raise _Lost
        seen += 1

    federation.watch.exchanged = lose
    try:
        federation.run_round(t, lambda n, exchange: exchange >= missed.get(n, 10**9))
    except _Lost:
        pass
    finally:
        federation.watch.exchanged = lambda uploads: None
        federation.server.load_state_dict(start)
