"""Unused memory is returned to the system at intervals, and only if many clients fragment the heap."""

from __future__ import annotations

import pytest

from fedal.engine import heap, threads
from fedal.engine.heap import Heap
from fedal.engine.threads import TRIM_FROM, thread_workers
from memory import resident_mb


def test_free_memory_between_live_blocks_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "EVERY_S", 0.0)
    blocks = [bytearray(b"x" * 60_000) for _ in range(2000)]  # too small to be mapped separately
    del blocks[::2]
    before = resident_mb()
    Heap().tidy()
    assert before - resident_mb() > 30
    assert len(blocks) == 1000


def test_the_heap_is_trimmed_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    trimmed = []
    monkeypatch.setattr(heap.time, "monotonic", lambda: clock[-1])
    tidied = Heap()
    tidied._trim = lambda pad: trimmed.append(clock[-1]) or 1
    for second in (0.5, 1.9, 2.1, 2.5, 4.0, 4.2):
        clock.append(second)
        tidied.tidy()
    assert trimmed == [2.1, 4.2]


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "EVERY_S", 0.0)
    monkeypatch.setattr(heap.sys, "platform", "darwin")
    Heap().tidy()


@pytest.mark.parametrize("clients", [TRIM_FROM - 1, TRIM_FROM])
def test_the_heap_is_trimmed_only_with_many_items(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(threads.Heap, "tidy", lambda self: calls.append(1))
    with thread_workers(2) as workers:
        assert workers.map(lambda n: n + 1, range(clients)) == list(range(1, clients + 1))
    assert len(calls) == (clients if clients == TRIM_FROM else 0)
