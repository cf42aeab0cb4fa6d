"""Reads the data of one owner from whatever holds them: CSV, Parquet, `.npz`, a folder of images, or a DataFrame."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from fedal.data.custom import by_schema, held_out_fifth, load_npz, load_public_npz
from fedal.data.dataset import Dataset, Floats
from fedal.data.images import read_image_folder, read_public_images
from fedal.data.schema import Arrays, Schema, Table
from fedal.data.tables.encoding import count_rows, encode, fitted, read_labels, refuse_too_large
from fedal.data.tables.file import TableFile
from fedal.errors import DataError

Kind: TypeAlias = Literal["table", "arrays", "images"]
Readable: TypeAlias = Any  # a path, or a DataFrame of pandas, polars or pyarrow
FRAME = "the DataFrame"  # what errors call a table that is in no file

SUFFIXES: dict[str, Kind] = {
    ".csv": "table", ".tsv": "table", ".parquet": "table", ".pq": "table", ".npz": "arrays",
}  # fmt: skip


def read_data(
    source: Readable, schema: Schema | None = None, *, name: str | None = None, n_classes: int | None = None
) -> Dataset:
    """One owner's labelled samples, encoded by the schema; only `.npz` files can do without one, or with `n_classes`.

    Every fifth sample of each class, in the order of the file, is held out for testing.
    """
    if not isinstance(source, str | os.PathLike):
        return _read_table(open_table(source), _needed(schema, FRAME), name or "own")
    path = Path(source)
    kind = kind_of(path)
    if kind == "images":
        return read_image_folder(path, _needed(schema, str(path)))
    if kind == "table":
        return _read_table(open_table(path), _needed(schema, str(path)), name or path.stem)
    return load_npz(path, name=name, n_classes=n_classes, schema=schema)


def read_public(source: Readable, schema: Schema | None = None) -> Floats:
    """The samples of a public set, encoded by the schema; labels in it are ignored."""
    if isinstance(source, str | os.PathLike) and (kind := kind_of(Path(source))) != "table":
        path = Path(source)
        if kind == "images":
            return read_public_images(path, _needed(schema, str(path)))
        x = load_public_npz(path)
        if schema is not None:
            _refuse_other_shape(x, schema, path)
        return x
    table = open_table(source)
    schema = _needed(schema, table.name)
    findings = fitted(table, schema, labelled=False)
    findings.rows = count_rows(table)
    refuse_too_large(findings.rows, schema.table.width, table.name)
    x = np.empty((findings.rows, schema.table.width), np.float32)

    def place(row: int, column: int, part: Floats) -> None:
        x[row : row + len(part), column : column + part.shape[1]] = part

    encode(table, schema, findings, place)
    if not len(x):
        raise DataError(f"{table.name}: there are no rows.")
    return x


def kind_of(path: Path) -> Kind:
    """What a path holds, judged by its name; raises DataError unless it is a regular file or a folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DataError(f"{path}: the file does not exist.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    if stat.S_ISDIR(mode):
        return "images"
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: a pipe, socket or device; expected a file, which can be read more than once.")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: unknown kind of file {path.suffix!r}; expected {', '.join(SUFFIXES)}, or a folder with one "
            "folder of images per class. Save a spreadsheet as CSV (UTF-8)."
        )
    return SUFFIXES[path.suffix.lower()]


def open_table(source: Readable) -> TableFile:
    """A table on disk or in memory."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if kind_of(path) != "table":
            raise DataError(f"{path}: not a table; expected a CSV or Parquet file.")
        if path.suffix.lower() in (".csv", ".tsv"):
            from fedal.data.tables.csv_file import CsvFile

            return CsvFile(path)
        from fedal.data.tables.arrow import ParquetFile

        return ParquetFile(path)
    if hasattr(source, "iloc"):
        from fedal.data.tables.frame import Frame

        return Frame(source, FRAME)
    if hasattr(source, "__arrow_c_stream__"):
        from fedal.data.tables.arrow import ArrowTable

        return ArrowTable(source, FRAME)
    raise DataError(f"data: a {type(source).__name__}; expected a path, a Dataset or a DataFrame.")


def _needed(schema: Schema | None, where: str) -> Schema:
    if schema is None:
        how = (
            'schema = fedal.data.draft_schema(public, classes=("no", "yes"), label=NAME). Then read it: '
            "fedal.data.read_data(frame, schema), or name a saved one in the config: schema_file=..."
            if where == FRAME
            else "fedal schema PUBLIC --label NAME --classes no,yes. Then pass it: --schema-file schema.json"
        )
        raise DataError(
            f"{where}: needs a schema, which says how its values become numbers. Draft one from the public set: {how}"
        )
    return schema


def _read_table(table: TableFile, schema: Schema, name: str) -> Dataset:
    if not isinstance(schema.inputs, Table):
        raise DataError(f"{table.name}: a table; the schema describes {schema.inputs.kind}.")
    findings = fitted(table, schema, labelled=True)
    refuse_too_large(table.n_rows or 0, schema.table.width, table.name)  # a small file can claim any number of rows
    y = read_labels(table, schema)  # first, because it decides where each row goes: no row is ever moved
    findings.rows = len(y)
    held = held_out_fifth(y)
    if not len(y):
        raise DataError(f"{table.name}: there are no rows.")
    if not held.any():
        raise DataError(f"{table.name}: no class has 5 rows, so none can be held out for testing. Add rows.")
    refuse_too_large(len(y), schema.table.width, table.name)
    train, test = (np.empty((int(part.sum()), schema.table.width), np.float32) for part in (~held, held))

    def place(row: int, column: int, part: Floats) -> None:
        columns, here = slice(column, column + part.shape[1]), held[row : row + len(part)]
        before = np.count_nonzero(held[:row])
        for out, first, chosen in ((test, before, here), (train, row - before, ~here)):
            rows = np.flatnonzero(chosen)
            out[first : first + len(rows), columns] = part.take(
                rows, axis=0, mode="clip"
            )  # twice as fast as part[chosen]

    encode(table, schema, findings, place)
    absent = [name for number, name in enumerate(schema.classes) if not (y == number).any()]
    unseen = (f"{table.name}: no row is of class {', '.join(absent)}",) if absent else ()
    provenance, notes = f"custom table {Path(table.name).name}", findings.notes(table.name) + unseen
    lacking = findings.lacking
    return by_schema(schema, name, train, test, y, held, provenance=provenance, lacking=lacking, notes=notes)


def _refuse_other_shape(x: Floats, schema: Schema, path: Path) -> None:
    if not isinstance(schema.inputs, Arrays) or x.shape[1:] != schema.inputs.shape:
        raise DataError(
            f"{path}: arrays of shape {x.shape[1:]}; the schema describes {schema.inputs.kind} of shape "
            f"{schema.sample_shape}."
        )
