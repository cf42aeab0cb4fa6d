"""No six consecutive lines of code occur twice in src. Imports do not count: files of one kind import the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import fedal

RUN = 6


def lines_of(text: str) -> list[tuple[int, str]]:
    """Number and text of the lines of code, without comments, imports, blank lines and single brackets."""
    stripped = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    skipped = ("#", "from ", "import ")
    return [(number, line) for number, line in stripped if line.strip("()[]{},:") and not line.startswith(skipped)]


def repeats(sources: Mapping[str, str]) -> list[str]:
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in sources.items():
        lines = lines_of(text)
        for start in range(len(lines) - RUN + 1):
            run = lines[start : start + RUN]
            places[tuple(line for _, line in run)].append(f"{name}:{run[0][0]}")
    return [" = ".join(found) for found in places.values() if len(found) > 1]


def test_no_six_lines_occur_twice() -> None:
    root = Path(fedal.__file__).parent
    assert not repeats({str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in sorted(root.rglob("*.py"))})


def test_six_lines_that_occur_twice_are_found() -> None:
    six = "\n".join(f"value_{n} = {n}" for n in range(RUN))
    assert repeats({"a.py": six, "b.py": f"# other\n\nbefore = 1\n{six}"}) == ["a.py:1 = b.py:4"]
    assert not repeats({"a.py": six, "b.py": six.replace("value_3", "other")})
