"""Drafts a schema from the public set. Class names and the positive class are given by hand: it has no labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedal.data.custom import load_public_npz
from fedal.data.images import draft_images
from fedal.data.reading import Readable, kind_of, open_table
from fedal.data.schema import Arrays, Category, Number, Schema, Table, make_schema
from fedal.data.tables.file import TableFile, nearest
from fedal.data.tables.summary import ColumnSummary, row_of, summarise
from fedal.data.tables.values import MISSING_MARKS, canonical
from fedal.errors import DataError

MAX_CATEGORIES = 1000
MANY_ROWS = 20  # in fewer rows, all integers may differ by chance
FEW_CATEGORIES = 100  # with more, a column in which most values occur once is taken for names or free text


def draft_schema(
    public: Readable,
    classes: Sequence[str],
    *,
    label: str = "label",
    positive: str | None = None,
    without: Sequence[str] = (),
    categories: Sequence[str] = (),
    missing_marks: Sequence[str] = (),
    size: tuple[int, int] | None = None,
    channels: Literal[1, 3] | None = None,
) -> Schema:
    """A schema from a public table (a file or DataFrame), `.npz` file or folder of images.

    The positive class of two is the last one, unless it is given.
    """
    if positive is None and len(classes) == 2:
        positive = classes[1]
    kind = kind_of(Path(public)) if isinstance(public, str | os.PathLike) else "table"
    if kind != "table" and (without or categories or missing_marks):
        raise DataError(f"{public}: {kind} have no named columns; leave out --without, --category and --missing.")
    if kind == "images":
        return draft_images(Path(public), classes, positive=positive, size=size, channels=channels)
    if size or channels:
        raise DataError(f"{public}: not a folder of images; leave out --size and --channels.")
    if kind == "arrays":
        shape = load_public_npz(Path(public)).shape[1:]
        inputs = Arrays(shape=shape, order="chw" if len(shape) == 3 else None)
        return make_schema(inputs=inputs, classes=tuple(classes), label=label, positive=positive)
    return draft_table(open_table(public), classes, label, positive, without, categories, missing_marks)


def draft_table(
    table: TableFile,
    classes: Sequence[str],
    label: str,
    positive: str | None,
    without: Sequence[str],
    categories: Sequence[str],
    missing_marks: Sequence[str],
) -> Schema:
    """A schema for tables like this public one: means, standard deviations, medians and categories come from it.

    `without` leaves columns out, `categories` are columns of codes that look like numbers, `missing_marks` are further
    texts for a missing value.
    """
    for column in (*without, *categories):
        if column not in table.columns:
            near = nearest(column, table.columns)
            hint = f'Did you mean "{near}"?' if near else f"Columns: {', '.join(table.columns)}."
            raise DataError(f'{table.name}: there is no column "{column}". {hint}')
    marks = tuple(dict.fromkeys((*MISSING_MARKS, *missing_marks)))
    names = tuple(map(canonical, classes))
    used = [column for column in table.columns if column not in (label, *without)]
    if not used:
        raise DataError(f"{table.name}: no column is left to learn from.")
    columns = tuple(_column(found, table, names, categories) for found in summarise(table, used, marks))
    return make_schema(
        inputs=Table(columns=columns, missing_marks=marks),
        classes=names,
        label=label,
        positive=None if positive is None else canonical(positive),
    )


def _column(found: ColumnSummary, table: TableFile, classes: Sequence[str], coded: Sequence[str]) -> Number | Category:
    where = f'{table.name}, column "{found.name}"'
    leave_out = f"leave it out: --without {found.name}"
    if found.kind == "empty":
        raise DataError(
            f"{where}: all {found.rows} values are missing, so there are no statistics. Use other public rows, or "
            f"{leave_out}."
        )
    if found.kind == "dates":
        raise DataError(
            f"{where}: the values are dates, such as {next(iter(found.texts))!r}. Turn dates "
            f"into numbers, such as days before a fixed day, or {leave_out}."
        )
    if found.distinct == len(classes) and set(found.categories) == set(classes):
        raise DataError(
            f"{where}: its values are exactly the classes. If it is the label: --label {found.name}. Otherwise "
            f"{leave_out}."
        )
    if found.kind == "numbers" and found.name not in coded:
        return _number(found)
    if found.kind == "mixed" and found.name not in coded:
        text = found.first_text
        raise DataError(
            f"{where}, row {row_of(table, found.name, text)}: {text!r} among numbers. If it stands for a missing "
            f"value: --missing {text}. If all values are codes: --category {found.name}. Or {leave_out}."
        )
    few = found.distinct <= FEW_CATEGORIES or 2 * found.distinct <= found.present
    if found.distinct > MAX_CATEGORIES or not few:
        example = next(iter(found.categories))
        raise DataError(
            f"{where}: {found.distinct:,} different texts in {found.present:,} rows, such as {example[:80]!r}. Names "
            f"and free text are not categories: {leave_out}."
        )
    return _category(found)


def _number(found: ColumnSummary) -> Number:
    numbers = found.numbers
    spread = float(np.std(numbers))
    return Number(name=found.name, mean=float(np.mean(numbers)), scale=spread or 1.0, missing=float(np.median(numbers)))


def _category(found: ColumnSummary) -> Category:
    commonest = max(found.categories, key=lambda name: found.categories[name])  # the first of several
    return Category(name=found.name, categories=tuple(found.categories), missing=commonest)


def like_identifiers(public: Readable, schema: Schema) -> list[str]:
    """Columns of integers in which no value occurs twice: perhaps they number the rows, or name a person."""
    if not isinstance(schema.inputs, Table):
        return []
    numbers = [column.name for column in schema.inputs.columns if isinstance(column, Number)]
    found = summarise(open_table(public), numbers, schema.inputs.missing_marks) if numbers else []
    return [
        column.name
        for column in found
        if column.present >= MANY_ROWS and (column.numbers % 1 == 0).all() and (np.diff(column.numbers) > 0).all()
    ]
