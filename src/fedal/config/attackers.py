"""The setting `attackers`: which clients of a simulation attack, how, how strongly and from which round.

Each entry is `who:attack:strength@round`. `who` is a client, or a share such as 0.2: the last 20% of the roster.
Strength and round may be left out. Attacks are functions in `fedal.simulate.attackers`. `absent` is none: the client
takes no part, so that an attack can be compared with the same federation without its attackers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from fedal.messages import LARGEST

ABSENT = "absent"
ATTACKS: dict[str, float | None] = {
    "negate": 1.0,
    "scale": 10.0,
    "constant": 20.0,
    "random": 10.0,
    "label-flip": 1.0,
    "collusion": 20.0,
    "pcfdla": 20.0,
    "lma": 20.0,
    "hips": None,
    ABSENT: None,
}
"""attack -> its usual strength; None: it has no strength."""

EXAMPLE = "expected who:attack:strength@round, such as client-03:negate:10@20 or 0.2:lma"
ENTRY = re.compile(r"(?P<who>[^:@]+):(?P<attack>[^:@]+)(:(?P<strength>[^:@]+))?(@(?P<since>[^:@]+))?")
SHARE = re.compile(r"0?\.\d+")


class Attacker(NamedTuple):
    """One client that lies."""

    client: str
    attack: str
    strength: float
    since: int  # the first round in which it attacks


def attackers_of(entries: Sequence[str], roster: Sequence[str]) -> dict[str, Attacker]:
    """client -> its attack, in the order of the entries. Raises ValueError with a sentence for the user."""
    found: dict[str, Attacker] = {}
    for entry in entries:
        parts = ENTRY.fullmatch(entry)
        if parts is None:
            raise ValueError(f'"{entry}": {EXAMPLE}.')
        attack, since = parts["attack"], parts["since"] or "0"
        if attack not in ATTACKS:
            raise ValueError(f'"{entry}": there is no attack "{attack}". Known: {", ".join(ATTACKS)}.')
        if not since.isdecimal():
            raise ValueError(f'"{entry}": the round is "{since}"; expected 0 or more.')
        strength = _strength(entry, attack, parts["strength"])
        for client in _clients(entry, parts["who"], roster):
            if client in found:
                raise ValueError(f'"{entry}": client "{client}" already has an attack; give it one.')
            found[client] = Attacker(client, attack, strength, int(since))
    if found and len(found) >= len(roster):
        raise ValueError(f"all {len(roster)} clients attack; leave at least one honest.")
    return found


def _strength(entry: str, attack: str, given: str | None) -> float:
    usual = ATTACKS[attack]
    if given is None:
        return usual or 0.0
    if usual is None:
        raise ValueError(f'"{entry}": {attack} has no strength. Write it without.')
    try:
        strength = float(given)
    except ValueError:
        strength = math.nan
    if not 0 < strength <= LARGEST:
        raise ValueError(f'"{entry}": the strength is "{given}"; expected a number above 0, at most {LARGEST:g}.')
    return strength


def _clients(entry: str, who: str, roster: Sequence[str]) -> Sequence[str]:
    if SHARE.fullmatch(who):
        count = int(float(who) * len(roster) + 1e-9)  # 0.29 * 100 is 28.999999999999996
        if not count:
            raise ValueError(f'"{entry}": {who} of {len(roster)} clients is less than one. Raise the share.')
        return roster[-count:]
    if who not in roster:
        raise ValueError(f'"{entry}": there is no client "{who}". There are: {", ".join(roster)}.')
    return [who]
