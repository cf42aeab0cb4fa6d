"""`fedal init`: a small project that runs at once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedal.projects.bank import BANK
from fedal.projects.blank import BLANK
from fedal.projects.hospital import HOSPITAL
from fedal.projects.images import IMAGES
from fedal.projects.project import create


class Kind(StrEnum):
    """The projects that `fedal init` knows."""

    BANK = "bank"
    HOSPITAL = "hospital"
    IMAGES = "images"
    BLANK = "blank"


PROJECTS = {Kind.BANK: BANK, Kind.HOSPITAL: HOSPITAL, Kind.IMAGES: IMAGES, Kind.BLANK: BLANK}


def init(
    kind: Annotated[
        Kind, typer.Argument(help="; ".join(f"{name}: {each.summary}" for name, each in PROJECTS.items()) + ".")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the project.", show_default="KIND")] = None,
) -> None:
    """Write a small working project: data, federation.toml, models and a README."""
    folder = out or Path(kind)
    origin = create(PROJECTS[kind], folder)
    print(f"data: {origin}")
    print(f"project: {folder}. Next: cd {folder} && fedal run")
