"""Compares the output that a page shows with what the command printed, and pastes the printed output into a page.

The lines must be the same, word by word, with these exceptions:

- A line `...` stands for any number of lines, also for none.
- Blank lines, the width of gaps and the length of drawn rules do not count: they are layout.
- Times (`3.9 s`, `2.5 min`) and dates (`2026-01-31`, `20260131-120000`) may be any.
- Numbers with a decimal point, such as accuracies, may differ by TOLERANCE, because bits differ between kinds of CPU;
  the ends of an interval (`+0.14 to +0.24`) by INTERVAL_TOLERANCE, because few seeds magnify a difference.
  They must have as many decimals as the page shows. `< 0.001` counts as 0.001.
- Hashes and the names of contracts (`3f9a-1c42-...`) may be any, because every new option of a method makes others.
- Integers and sizes (`0.26 MB`) must be equal: nothing random decides them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

ELISION = "..."
TOLERANCE = 0.02
INTERVAL_TOLERANCE = 0.05

IGNORED = (  # pattern -> what every match of it is taken for
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?|\b\d{8}-\d{6}\b"), "DATE"),
    (re.compile(r"(?<![\w.])\d+(?:\.\d+)? (?:ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{4}(?:-[0-9a-f]{4}){4})\b"), "HASH"),
    (re.compile("─+"), "─"),
    (re.compile(r"< (?=0\.001\b)"), ""),
    (re.compile("\N{MINUS SIGN}"), "-"),
    (re.compile(r"\s+"), " "),
)
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d+(?![\w.]| [kMG]?B\b)")
INTERVAL = re.compile(rf"({NUMBER.pattern}) to ({NUMBER.pattern})")


def difference(shown: Sequence[str], printed: Sequence[str], *, any_order: bool = False) -> str:
    """The first line that the page and the command do not share, in words; empty if there is none.

    `any_order` is for the lines of processes that run at the same time; it does not go with an elision.
    """
    wanted, found = _to_compare(shown), _to_compare(printed)
    if any_order:
        wanted, found = sorted(wanted, key=_rank), sorted(found, key=_rank)
    parts = _parts(wanted)
    if len(parts) == 1:
        return _first_difference(wanted, found)
    start, *between, end = parts
    rest = found[len(start) :]
    if problem := _first_difference(start, found[: len(start)]):
        return problem
    for part in between:
        places = (at for at in range(len(rest) - len(part) + 1) if not _first_difference(part, rest[at:][: len(part)]))
        if (place := next(places, None)) is None:
            return f"after the elision the page shows\n  {part[0]}\nand the command prints no such lines"
        rest = rest[place + len(part) :]
    return _first_difference(end, rest[max(0, len(rest) - len(end)) :])


def refreshed(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The printed lines as a page shows them; what the page elides is found again by the lines around it.

    Each elided passage lies between two shown lines; the printed lines most like these two are its new borders.
    """
    lines = [line.rstrip() for line in printed]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    parts = _parts([line.rstrip() for line in shown])
    if len(parts) == 1:
        return lines
    new: list[str] = []
    at = 0
    for index, part in enumerate(parts):
        if index:
            new.append(ELISION)
        kept = [line for line in part if line]
        if not kept:
            continue
        first = at if index == 0 else _most_alike(kept[0], lines, at)
        last = len(lines) - 1 if index == len(parts) - 1 else _most_alike(kept[-1], lines, first)
        new += lines[first : last + 1]
        at = last + 1
    return new


def _to_compare(lines: Sequence[str]) -> list[str]:
    clean = []
    for line in lines:
        for pattern, instead in IGNORED:
            line = pattern.sub(instead, line)
        clean.append(line.strip())
    return [line for line in clean if line]


def _parts(lines: Sequence[str]) -> list[list[str]]:
    """The lines between elisions; without any elision, one part."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == ELISION:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _first_difference(wanted: Sequence[str], found: Sequence[str]) -> str:
    for want, have in zip(wanted, found, strict=False):
        if not _same(want, have):
            return f"the page shows\n  {want}\nthe command prints\n  {have}"
    if len(wanted) > len(found):
        return f"the page shows\n  {wanted[len(found)]}\nwhich the command does not print"
    if len(found) > len(wanted):
        return f"the command prints\n  {found[len(wanted)]}\nwhich the page does not show"
    return ""


def _same(want: str, have: str) -> bool:
    if _words(want) != _words(have):
        return False
    ends = {number for pair in INTERVAL.findall(want) for number in pair}
    return all(
        abs(float(one) - float(other)) <= (INTERVAL_TOLERANCE if one in ends else TOLERANCE)
        for one, other in zip(NUMBER.findall(want), NUMBER.findall(have), strict=True)
    )


def _words(line: str) -> str:
    """The line with each number replaced by its count of decimals: all that must be equal."""
    return NUMBER.sub(lambda number: f"#{len(number[0].partition('.')[2])}", line)


def _rank(line: str) -> tuple[str, list[float]]:
    """An order in which lines that differ only in their numbers meet those with the nearest numbers."""
    return _words(line), [float(number) for number in NUMBER.findall(line)]


def _most_alike(line: str, lines: Sequence[str], start: int) -> int:
    def likeness(index: int) -> float:
        return SequenceMatcher(None, line, lines[index], autojunk=False).ratio()

    return max(range(start, len(lines)), key=likeness, default=start)
