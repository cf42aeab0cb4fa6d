"""What a federation of many clients takes per iteration, from the costs of one node: bytes, time and who is left.

A synchronous exchange waits for the slowest client that still takes part. Clients differ in speed, each of their steps
varies, some leave during a round. All of these are drawn; see the fields of `World` for the assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedal.seeding import normals, philox_key, raw_bits, uniforms
from studies.scale_costs import BATCH, Costs


@dataclass(frozen=True)
class World:
    """Assumptions, not measurements: links, devices and how long clients stay."""

    client_bits_per_s: float = 20e6
    server_bits_per_s: float = 1e9
    delay_s: float = 0.02  # each way
    slower: float = 10.0  # a client's device against the measured core
    speeds: float = 0.5  # standard deviation of log speed between devices
    jitter: float = 0.3  # the same between the steps of one device
    stay_s: float = 600.0  # mean time until a client leaves without a word
    patience: float = 3.0  # deadline of an exchange, in medians of the clients' times; 0: wait for all


@dataclass(frozen=True)
class Load:
    """Of one iteration, in seconds."""

    clients: float  # waiting for the slowest one
    link: float
    server: float

    @property
    def total(self) -> float:
        return self.clients + self.link + self.server


@dataclass(frozen=True)
class Outcome:
    """Of a round of tau iterations."""

    iteration: Load
    left: float  # share of the cohort that completes the round


def server_bytes(costs: Costs, cohort: float, batch: int = BATCH) -> float:
    """Bytes that pass the server's link per iteration, both ways."""
    more = 4 * (batch - BATCH) * 10
    return cohort * (costs.up_bytes + costs.down_bytes + 3 * more)


def server_seconds(costs: Costs, method: str, cohort: float, batch: int = BATCH) -> float:
    """One core's seconds per iteration: transport of all messages, and the method's computation."""
    grown = batch / BATCH  # checks and computation follow the numbers; most of the transport follows the messages
    return (cohort * costs.transport_ms + grown * costs.server(method, cohort)) / 1e3


def simulated(
    costs: Costs, world: World, method: str, cohort: int, tau: int = 5, batch: int = BATCH, seed: int = 0
) -> Outcome:
    """One round, drawn: a client that misses a deadline or leaves sits out the rest of it."""
    key = philox_key(seed, "scale")
    step_s = world.slower * costs.client_ms / 1e3 * batch / BATCH
    own = step_s * np.exp(world.speeds * normals(raw_bits(key, 0, 2 * cohort)))
    present, waited, link, served = np.ones(cohort, bool), 0.0, 0.0, 0.0
    for i in range(tau):
        times = own * np.exp(world.jitter * normals(raw_bits(key, 2 * i + 1, 2 * cohort)))
        here = int(present.sum())
        if not here:
            break
        deadline = world.patience * float(np.median(times[present])) if world.patience else np.inf
        slowest = min(deadline, float(times[present].max()))
        on_the_way = _link_seconds(costs, world, here, batch)
        serving = server_seconds(costs, method, here, batch)
        gone = uniforms(raw_bits(key, 2 * i + 2, cohort)) < 1 - np.exp(-(slowest + on_the_way + serving) / world.stay_s)
        present &= (times <= deadline) & ~gone
        waited, link, served = waited + slowest, link + on_the_way, served + serving
    return Outcome(Load(waited / tau, link / tau, served / tau), float(present.mean()))


def _link_seconds(costs: Costs, world: World, cohort: int, batch: int) -> float:
    """A round trip; the bytes of one client on its own link or those of all on the server's, whichever is slower."""
    all_bits = 8 * server_bytes(costs, cohort, batch)
    return 2 * world.delay_s + max(all_bits / cohort / world.client_bits_per_s, all_bits / world.server_bits_per_s)


def largest_cohort(costs: Costs, method: str, seconds: float) -> int:
    """The most clients for which the server needs no more than this many seconds of one core per iteration."""
    low, high = 1, 10**7
    while low < high:
        middle = (low + high + 1) // 2
        if server_seconds(costs, method, middle) <= seconds:
            low = middle
        else:
            high = middle - 1
    return low
