"""`fedal settings`: every setting with its default, its meaning and what it changes."""

from __future__ import annotations

from typing import Annotated

import typer

from fedal.cli.completion import complete_method, complete_setting
from fedal.cli.printing import print_table
from fedal.config.described import COLUMNS, find_settings


def settings(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these settings.", autocompletion=complete_setting),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Show the options of this method.", autocompletion=complete_method)
    ] = None,
) -> None:
    """List the settings: default, meaning, whether a value changes weights, and whether sites are told it."""
    title = f"Options of {method}" if method and not names else "Settings"
    print_table(title, COLUMNS, find_settings(names or [], method))
    if not names:
        others = "fedal settings" if method else "fedal settings --method NAME"
        print(f"Set one with --set NAME=VALUE or in a TOML file. {'Other settings' if method else 'Method options'}: "
              f"{others}")  # fmt: skip
