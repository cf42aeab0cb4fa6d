"""What a data file holds and what a schema makes of it: `fedal data inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from fedal.data.custom import read_arrays
from fedal.data.dataset import Dataset
from fedal.data.images import count_images
from fedal.data.lacking import without_lacking
from fedal.data.overlap import count_shared
from fedal.data.reading import kind_of, open_table, read_data, read_public
from fedal.data.schema import Category, Number, Schema, Table
from fedal.data.tables.file import nearest
from fedal.data.tables.summary import ColumnSummary, summarise
from fedal.data.tables.values import MISSING_MARKS


@dataclass(frozen=True)
class Contents:
    """A table about a file, ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def contents(path: Path, schema: Schema | None = None) -> Contents:
    """What the file holds, whether or not it fits the schema."""
    kind = kind_of(path)
    if kind == "images":
        counts = count_images(path)
        return Contents(f"{path}: images", ("folder", "images"), [[name, f"{n:,}"] for name, n in counts.items()])
    if kind == "arrays":
        rows = [[name, str(array.dtype), str(array.shape)] for name, array in read_arrays(path).items()]
        return Contents(f"{path}: arrays", ("array", "type", "shape"), rows)
    table = open_table(path)
    inputs = schema.inputs if schema is not None and isinstance(schema.inputs, Table) else None
    found = summarise(table, marks=inputs.missing_marks if inputs else MISSING_MARKS)
    rows = [[*_described(column), *([_meaning(column, schema)] if schema else [])] for column in found]
    if inputs:
        lacking = [name for name in inputs.names if name not in table.columns]
        rows += [[name, "-", "-", "-", "-", "the file lacks it: imputed"] for name in lacking]
    head = ("column", "holds", "missing", "distinct", "values", *(["in the schema"] if schema else []))
    return Contents(f"{path}: {found[0].rows:,} rows", head, rows)


def verdicts(path: Path, schema: Schema, public: Path | None = None) -> Iterator[str]:
    """One line each: sizes, classes, decisions and rows that are public. Raises DataError if the file does not fit."""
    data = read_data(path, schema)
    sizes = f"{len(data.train_y):,} samples to train on, {len(data.test_y):,} to test on"
    yield f"fits the schema {schema.sha256[:12]}: {sizes}"
    yield f"classes: {_classes(data)}"
    yield from data.notes
    if public is not None:
        shared_x = without_lacking(read_public(public, schema), data)
        shared = count_shared(data.train_x, shared_x) + count_shared(data.test_x, shared_x)
        compared = ", as far as its columns go" if data.lacking else ""
        readable = ", which every site can read" if shared else ""
        yield f"{shared:,} of its rows are also in {public}{compared}{readable}"


def _described(column: ColumnSummary) -> list[str]:
    if column.kind == "numbers":
        low, high = (f"{value:g}" for value in (column.numbers[0], column.numbers[-1]))
        values = f"{low} to {high}, median {np.median(column.numbers):g}"
    elif column.kind == "empty":
        values = "-"
    else:
        commonest = sorted(column.categories, key=lambda name: -column.categories[name])
        values = ", ".join(name[:30] for name in islice(commonest, 4)) + (", ..." if len(commonest) > 4 else "")
    return [column.name, column.kind, f"{column.missing:,}", f"{column.distinct:,}", values]


def _meaning(column: ColumnSummary, schema: Schema) -> str:
    if column.name == schema.label:
        return "the label"
    known = {each.name: each for each in schema.table.columns}
    if column.name not in known:
        near = nearest(column.name, list(known))
        return f'not in it; is it "{near}"?' if near else "not in it: ignored"
    found = known[column.name]
    if isinstance(found, Number):
        return f"(x - {found.mean:g}) / {found.scale:g}, missing: {found.missing:g}"
    assert isinstance(found, Category)
    others = sum(times for name, times in column.categories.items() if name not in found.categories)
    return f"{len(found.categories)} categories and other ({others:,} rows), missing: {found.missing}"


def _classes(data: Dataset) -> str:
    counts = np.bincount(np.concatenate([data.train_y, data.test_y]), minlength=data.n_classes)
    names = data.class_names or tuple(map(str, range(data.n_classes)))
    return ", ".join(
        f"{name} {count:,} ({count / counts.sum():.1%})" for name, count in zip(names, counts, strict=True)
    )
