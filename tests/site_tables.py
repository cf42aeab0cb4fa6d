"""Three sites with small tables of their own: unlike sizes, one lacks a column, one has never seen a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedal.data.drafting import draft_schema

SIZES = {"north": 60, "south": 25, "east": 12}
JOBS = ("clerk", "nurse", "pilot")


def rows(seed: int, n: int) -> list[list[str]]:
    """default, age, job, income: who is old or a pilot defaults; some values are missing."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        age, job = int(rng.integers(20, 60)), JOBS[int(rng.integers(3))]
        label = "yes" if age > 45 or job == "pilot" else "no"
        found.append([label, "" if i % 7 == 3 else str(age), "NA" if i % 9 == 5 else job, f"{rng.normal(50, 9):.2f}"])
    return found


def write_sites(folder: Path) -> dict[str, Any]:
    """Writes the sites' files, the public set and the schema; returns the settings of a run on them."""
    head = ["default", "age", "job", "income"]
    for seed, (site, n) in enumerate(SIZES.items()):
        table = rows(seed, n)
        if site == "east":  # one class only
            table = [["yes", *fields[1:]] for fields in table]
        kept = [0, 1, 2] if site == "south" else [0, 1, 2, 3]  # the south has no income
        lines = [",".join(fields[i] for i in kept) for fields in [head, *table]]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    public = [",".join(fields[1:]) for fields in [head, *rows(99, 40)]]
    (folder / "public.csv").write_text("\n".join(public) + "\n", encoding="utf-8")
    draft_schema(folder / "public.csv", ("no", "yes"), label="default").save(folder / "schema.json")
    return {
        "clients": [{"name": site, "data": str(folder / f"{site}.csv")} for site in SIZES],
        "public": str(folder / "public.csv"),
        "schema_file": str(folder / "schema.json"),
        "batch_size": 8,
    }
