"""The largest and smallest values that a site accepts from a server, checked before anything is allocated.

They are far beyond any sensible run. A server that exceeds one would keep a site busy for ever, fill its memory, or
make its numbers overflow. Only deployments have these limits; in a simulation they are the user's own business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedal.config.settings import Config

Limits = tuple[float, float]

LIMITS: dict[str, Limits] = {
    "seed": (0, 2**63 - 1),
    "batch_size": (2, 4096),  # some messages hold B x B numbers
    "tau": (1, 10_000),
    "replay": (0, 1000),  # steps after each exchange
    "lr": (1e-12, 100.0),
    "clusters": (1, 1000),
    "n_classes": (2, 100_000),
    "rounds": (1, 10_000_000),
}
"""setting -> its limits."""

TEMPERATURES: Limits = (1e-3, 1e3)  # of every setting whose name ends so: outputs are divided by them
INTEGERS: Limits = (-100_000, 100_000)  # of every other integer
NUMBERS: Limits = (-1e4, 1e4)  # of every other number
MAX_ENTRIES = 64  # of a list
MAX_TEXT = 100  # characters


def beyond_limits(config: Config, n_classes: int, rounds: int) -> list[str]:
    """One line for each setting that a site would refuse: what was found and what was expected."""
    settings = config.for_sites()
    found = {**settings, **settings["options"], "n_classes": n_classes, "rounds": rounds}
    del found["options"]
    return [line for name, value in found.items() for line in _problems(name, value)]


def _problems(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        if len(value) > MAX_ENTRIES:
            yield f"{name} has {len(value)} entries; expected at most {MAX_ENTRIES}"
        for entry in value[:MAX_ENTRIES]:
            yield from _problems(name, entry)
    elif isinstance(value, str):
        if len(value) > MAX_TEXT:
            yield f"{name} has {len(value)} characters; expected at most {MAX_TEXT}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = _limits(name, value)
        if not low <= value <= high:
            shown = repr(value) if abs(value) < 1e30 else f"{value:.3g}" if isinstance(value, float) else "too large"
            yield f"{name} = {shown}; expected {low:g} to {high:g}"


def _limits(name: str, value: float) -> Limits:
    if name in LIMITS:
        return LIMITS[name]
    if name.endswith("temperature"):
        return TEMPERATURES
    return INTEGERS if isinstance(value, int) else NUMBERS
