"""Bytes with random damage, as from a bad disk or an attacker."""

from __future__ import annotations

import random


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """The bytes with some bits flipped, bytes cut, doubled or inserted, or an excessive length field."""
    found = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(found), chance.choice([60, len(found)])))  # half of them in the header
        kind = chance.randrange(5)
        if kind == 0:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at : at + chance.randint(1, 40)]
        elif kind == 2:
            found[at:at] = found[at : at + chance.randint(1, 40)]
        elif kind == 3:
            found[at:at] = chance.randbytes(chance.randint(1, 10))
        else:
            found[at:at] = b"\xff" * chance.randint(1, 9) + b"\x01"
        found = found or bytearray(b"\0")
    return bytes(found)
