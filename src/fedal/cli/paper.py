"""`fedal paper`: the tables and figures of the FedAL paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from fedal.campaigns.paper.entries import ENTRIES, find
from fedal.campaigns.paper.outcome import HEADS
from fedal.campaigns.paper.related import TABLES, RelatedTable
from fedal.campaigns.paper.reproduce import choose_data, minutes, reproduce
from fedal.cli.options import Jobs, Quiet
from fedal.cli.printing import print_table, warn
from fedal.cli.screen import Screen
from fedal.errors import ConfigError, FedalError


def paper(
    name: Annotated[str, typer.Argument(help="Name of an entry, or `list` to list them.")],
    scale: Annotated[str, typer.Option(help="small: minutes on two cores; full: the paper's setting.")] = "small",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds 0, 1, ...", show_default="per entry, see list; full: 3")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for all runs, tables and figures.")] = Path("runs/paper"),
    jobs: Jobs = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Implied: an interrupted entry resumes.")] = True,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table or figure of the FedAL paper, ours next to the paper's numbers."""
    if name == "list":
        _print_entries()
        return
    if name in TABLES:
        _print_related(TABLES[name])
        return
    entry = find(name)
    if scale not in ("small", "full"):
        raise ConfigError(f"--scale {scale}: expected small or full.")

    from fedal.figures.paper import draw

    with Screen(quiet).live() as screen:
        outcome = reproduce(
            entry, cast(Literal["small", "full"], scale), out, seeds=seeds, jobs=jobs, watch=screen.watch,
            should_stop=screen.should_stop,
        )  # fmt: skip
    print_table(outcome.title, list(HEADS), [line.cells() for line in outcome.lines])
    print(f"ours: {outcome.quantity}; spread: standard deviation over seeds")
    for note in outcome.notes:
        print(f"note: {note}")
    written = outcome.write()
    try:
        written += draw(outcome)
    except FedalError as error:  # matplotlib is an extra
        warn(error)
    print("written: " + ", ".join(map(str, written)))
    if outcome.is_empty:
        raise typer.Exit(1)


def _print_entries() -> None:
    found = {name: choose_data(name, "small") for name in {entry.dataset for entry in ENTRIES}}
    rows = []
    for entry in ENTRIES:
        dataset, words, _ = found[entry.dataset]
        time = minutes(entry, dataset)
        rows.append([entry.name, entry.label, entry.title, words, f"{time:.0f} min" if time >= 1 else "under 1 min"])
    rows += [
        [table.name, table.label, table.title, "nothing: declarations", "under 1 min"] for table in TABLES.values()
    ]
    print_table("The FedAL paper, arXiv 2311.16584", ["name", "label", "content", "small runs on", "small takes"], rows)
    print("small takes: estimated for two idle cores. full: days to weeks; `fedal plan` estimates one of its runs.")


def _print_related(table: RelatedTable) -> None:
    """A table of related work: ours next to the printed cells where they differ. Nothing is run."""
    print_table(f"{table.title} ({table.label})", table.heads(), table.lines())
    differing = [row.printed for row in table.rows if row.differences()]
    print(f"ours follows from the declared messages and needs; it differs from the paper for {', '.join(differing)}")
    for note in table.notes:
        print(note)
