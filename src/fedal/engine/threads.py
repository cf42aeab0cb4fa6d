"""Clients in parallel on a thread pool, one intra-op thread each: torch releases the GIL.

The assignment of threads to clients does not affect results: a client's numbers depend only on its own state and
messages, and every operator runs on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch

from fedal.engine.heap import Heap
from fedal.engine.loop import Item, Result
from fedal.machine import available_cores

SHORT_S = 0.6e-3  # below, two threads take longer than one: measured with single and stacked clients of mlp-small
TRIM_FROM = 32  # with this many items or more, heap fragmentation is worth trimming


class ThreadWorkers:
    """Applies a function to many clients at once and returns the results in order."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, "fedal", initializer=torch.set_num_threads, initargs=(1,))
        self._heap = Heap()

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], cost: Callable[[Item], float] | None = None
    ) -> list[Result]:
        """The results in the order of the items. If any fail, all finish before the first error is raised.

        The items with the highest cost start first, so that all threads finish at about the same time. If all are
        short, they run in this thread: Python's lock lets threads that only call operators wait for each other.
        """
        items = list(items)
        if cost is not None and _are_short([cost(item) for item in items]):
            return _in_turn(function, items)
        trims = len(items) >= TRIM_FROM

        def work(item: Item) -> Result:
            result = function(item)
            if trims:
                self._heap.tidy()
            return result

        order = sorted(range(len(items)), key=lambda index: -cost(items[index])) if cost else range(len(items))
        submitted = {index: self._pool.submit(work, items[index]) for index in order}
        futures = [submitted[index] for index in range(len(items))]
        try:
            wait(futures)
        except BaseException:  # an interrupt: running items finish, the others are cancelled
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return [future.result() for future in futures]


def _are_short(seconds: Sequence[float]) -> bool:
    """Whether one thread is as fast as several; 0 is an item that was never timed."""
    return min(seconds, default=0) > 0 and (len(seconds) == 1 or max(seconds) < SHORT_S)


def _in_turn(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    results, failures = [], []
    for item in items:
        try:
            results.append(function(item))
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return results


@contextmanager
def thread_workers(workers: int) -> Iterator[ThreadWorkers]:
    """A pool of `workers` threads (0: one per core); restores torch's thread count afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # before the first operator: 1 and 2 intra-op threads give different bits
    pool = ThreadWorkers(workers or available_cores())
    try:
        yield pool
    finally:
        pool._pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(before)
