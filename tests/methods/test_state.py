"""A method's state holds everything that it keeps between rounds: a restored federation continues bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedal import methods
from fedal.engine.loop import Federation
from fedal.methods.method import Method
from fedal.methods.outputs import fedmd
from fedal.records.checkpoint import load_newest, save_checkpoint
from fedal.seeding import BatchStream
from splits import (
    NETS,
    QUICK,
    build_federation,
    build_of_table_models,
    differing_clients,
    fingerprint,
    restore,
    run_rounds,
    state_of,
)

METHODS = tuple(methods.MODULES)
BEFORE, AFTER = 2, 2

EPHEMERAL = {"observed"}  # metrics of the last round, replaced every round
FUNCTIONS_OF_THE_STEP = {"private", "_public", "public"}  # streams; tests/test_seeding.py
WITH_A_STATE_OF_ITS_OWN = {"learner"}


def build(method: str | Method) -> Federation:
    declared = methods.get(method) if isinstance(method, str) else method
    if declared.needs <= {"public"}:
        return build_federation(method, tau=2, nets=dict(list(NETS.items())[:3]))
    return build_of_table_models(declared.name, options={"tau": 2, **QUICK.get(declared.name, {})})


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    save_checkpoint(folder, 1, state)
    found = load_newest(folder, warn=pytest.fail)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_federation_continues_bit_for_bit(method: str, tmp_path: Path) -> None:
    uninterrupted = run_rounds(build(method), BEFORE)
    saved = through_a_file(state_of(uninterrupted), tmp_path)
    run_rounds(uninterrupted, range(BEFORE, BEFORE + AFTER))
    restored = run_rounds(restore(build(method), saved), range(BEFORE, BEFORE + AFTER))
    assert differing_clients(uninterrupted, restored) == []
    assert fingerprint(uninterrupted.server.state_dict()) == fingerprint(restored.server.state_dict())
    assert uninterrupted.wire.state_dict() == restored.wire.state_dict()
    assert fingerprint(uninterrupted.server.observed) == fingerprint(restored.server.observed)


@pytest.mark.parametrize("method", METHODS)
def test_saving_and_restoring_changes_nothing(method: str, tmp_path: Path) -> None:
    federation = run_rounds(build(method), BEFORE)
    state = state_of(federation)
    expected = fingerprint(state)
    assert fingerprint(state_of(federation)) == expected
    assert fingerprint(state_of(restore(build(method), through_a_file(state, tmp_path)))) == expected


def attributes(logic: object) -> dict[str, Any]:
    """The attributes of a logic that could hide state, in comparable form."""
    skipped = EPHEMERAL | FUNCTIONS_OF_THE_STEP | WITH_A_STATE_OF_ITS_OWN
    return {name: seen(value) for name, value in vars(logic).items() if name not in skipped}


def seen(value: Any, depth: int = 0) -> Any:
    """Values down to tensors and numbers; objects with a `state_dict` are represented by it."""
    if isinstance(value, torch.Tensor):
        return fingerprint(value)
    if isinstance(value, dict):
        return {str(key): seen(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [seen(part, depth + 1) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if hasattr(value, "state_dict"):
        return fingerprint(value.state_dict())
    if isinstance(value, BatchStream) or (callable(value) and not hasattr(value, "__dict__")) or depth > 6:
        return type(value).__name__
    if hasattr(value, "__dict__") and not callable(value):
        return {name: seen(part, depth + 1) for name, part in vars(value).items()}
    return value if isinstance(value, int | float | str | bool | None) else type(value).__name__


def logics(federation: Federation) -> dict[str, object]:
    return {"server": federation.server, **federation.clients}


def hidden_attributes(method: str | Method, folder: Path) -> list[str]:
    """The attributes of clients and server that a round changes and a restore does not restore."""
    federation = build(method)
    start = {who: attributes(logic) for who, logic in logics(federation).items()}
    run_rounds(federation, BEFORE)
    end = {who: attributes(logic) for who, logic in logics(federation).items()}
    restored = logics(restore(build(method), through_a_file(state_of(federation), folder)))
    back = {who: attributes(logic) for who, logic in restored.items()}
    return [
        f"{who}.{name}"
        for who in end
        for name in end[who].keys() | start[who].keys()
        if start[who].get(name) != end[who].get(name) and back[who].get(name) != end[who].get(name)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_no_method_keeps_anything_besides_config_and_state(method: str, tmp_path: Path) -> None:
    assert hidden_attributes(method, tmp_path) == []


class Counting(fedmd.FedMDClient):
    """Counts its rounds; only the subclass below saves the count."""

    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        self.rounds = 0

    def round(self, t: int) -> Any:
        self.rounds += 1
        yield from super().round(t)


class Remembering(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


@pytest.mark.parametrize(("client", "hidden"), [(Counting, ["rounds"]), (Remembering, [])])
def test_a_hidden_attribute_is_found(client: Any, hidden: list[str], tmp_path: Path) -> None:
    md = fedmd.METHOD
    method = Method("hiding", "", md.options, client, md.server, up=md.up, down=md.down, needs=md.needs)
    found = hidden_attributes(method, tmp_path)
    assert found == [f"{who}.{name}" for who in list(NETS)[:3] for name in hidden]


@pytest.mark.parametrize("method", METHODS)
def test_the_metrics_for_the_record_are_replaced_every_round(method: str) -> None:
    federation = run_rounds(build(method), 1)
    first = dict(federation.server.observed)
    federation.server.observed = {"stale": torch.zeros(())} if first else {}
    run_rounds(federation, range(1, 2))
    assert federation.server.observed.keys() == first.keys()
    assert all(value.isfinite().all() for value in first.values())
