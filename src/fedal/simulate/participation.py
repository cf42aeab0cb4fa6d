"""Who takes part in a round of a simulation: a function of config and round alone, so the same in every engine.

The setting `participation` draws a cohort; clients that `attackers` leaves out are in none.
"""

from __future__ import annotations

from fedal.config import Config
from fedal.config.attackers import ABSENT
from fedal.engine.loop import IsAbsent
from fedal.seeding import in_drawn_order, philox_key


def absence(config: Config, t: int) -> IsAbsent | None:
    """Which clients take no part in round t; None if all do."""
    if config.is_partial:
        present = cohort(config, t)
        return lambda client, exchange: client not in present
    away = _away(config, t)
    return (lambda client, exchange: client in away) if away else None


def cohort(config: Config, t: int) -> frozenset[str]:
    """The clients that `participation` draws for round t."""
    order = in_drawn_order(config.client_names, philox_key(config.seed, "participation"), t)
    away = _away(config, t)
    return frozenset([name for name in order if name not in away][: config.cohort_size])


def _away(config: Config, t: int) -> set[str]:
    return {a.client for a in config.attacker_table.values() if a.attack == ABSENT and t >= a.since}
