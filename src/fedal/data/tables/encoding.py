"""Encodes a table by a schema, in blocks: every value ends up in one place of one float32 array, never in a copy.

A number becomes (x - mean) / scale, computed in float64; a category becomes a 1 in its own column, or in that of all
others. Missing values and columns are imputed by the public statistics in the schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from fedal.data.dataset import Floats, Ints
from fedal.data.schema import Category, Number, Schema, Table
from fedal.data.tables.file import BLOCK_ROWS, TableFile, nearest
from fedal.data.tables.values import Numbers, Place, Values, as_numbers, as_texts, canonical, length_of
from fedal.errors import DataError
from fedal.machine import available_cores, total_memory

NAMED = 5  # columns that a note names
MAX_READERS = 2  # threads that read a Parquet file: each holds pages of the columns that it reads


@dataclass
class Findings:
    """What the encoding had to decide: columns that are lacking or unused, values that were imputed or are other."""

    rows: int = 0
    lacking: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    imputed: Counter[str] = field(default_factory=Counter)  # column -> values
    other: Counter[str] = field(default_factory=Counter)  # column -> values
    examples: dict[str, tuple[int, str]] = field(default_factory=dict)  # column -> row and text of the first other

    def notes(self, where: str) -> tuple[str, ...]:
        """One line for each decision, for the user."""
        lines = []
        if self.lacking:
            lines.append(
                f"{where}: it lacks {_shortened(self.lacking)}: imputed in its private and in its public inputs, so "
                "that its model never learns from a column it cannot have"
            )
        if self.unused:
            lines.append(f"{where}: not in the schema, and ignored: {_shortened(self.unused)}")
        if len(self.imputed) > NAMED:
            total = f"{self.imputed.total():,} missing values imputed in {len(self.imputed)} columns"
            lines.append(f"{where}: {total}: {_shortened([*self.imputed])}")
        else:
            each = self.imputed.items()
            lines += [f'{where}, column "{name}": {_counted(times, "missing value")} imputed' for name, times in each]
        for name, times in self.other.items():
            row, text = self.examples[name]
            lines.append(
                f'{where}, column "{name}": {_counted(times, "value")} of no category of the schema, taken as '
                f'"other"; the first is {text[:80]!r} in row {row}'
            )
        return tuple(lines)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _shortened(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - NAMED
    return _listed(names) if rest <= 0 else f"{_listed(names[:NAMED])} and {rest} more"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def encode(table: TableFile, schema: Schema, findings: Findings, place: Callable[[int, int, Floats], None]) -> None:
    """Encodes all rows, a few columns and rows at a time: `place` puts a part where it belongs.

    It is called with the part's first row, first encoded column and values, from several threads: each has columns of
    its own.
    """
    step = table.columns_at_once or len(schema.table.columns)
    groups = range(0, len(schema.table.columns), step)
    encode_group = partial(_encode_columns, table, schema, findings, place)
    with ThreadPoolExecutor(min(MAX_READERS, available_cores())) as readers:
        for found in readers.map(encode_group, (range(first, first + step) for first in groups)):  # in this order
            findings.imputed += found.imputed
            findings.other += found.other
            findings.examples |= found.examples


def _encode_columns(
    table: TableFile, schema: Schema, fitting: Findings, place: Callable[[int, int, Floats], None], group: range
) -> Findings:
    """Encodes all rows of some columns of the schema, given by their numbers; returns what it had to decide."""
    inputs, found = schema.table, Findings()
    columns, starts = inputs.columns[group.start : group.stop], inputs.starts[group.start : group.stop + 1]
    present = [column.name for column in columns if column.name not in fitting.lacking]
    row = 0
    for block in table.blocks(present) if present else _empty_blocks(fitting.rows):
        length = BLOCK_ROWS if not block else length_of(next(iter(block.values())))
        length = min(length, fitting.rows - row)
        x = np.zeros((length, starts[-1] - starts[0]), np.float32)
        for column, (start, stop) in zip(columns, pairwise(start - starts[0] for start in starts), strict=True):
            if column.name not in block:
                x[:, start:stop] = column.imputed
            elif isinstance(column, Number):
                where = Place(table.name, column.name, row + 1)
                _encode_numbers(column, block[column.name], x[:, start], inputs, where, found)
            else:
                _encode_categories(column, block[column.name], x[:, start:stop], inputs, row + 1, found)
        place(row, starts[0], x)
        row += length
    return found


def _empty_blocks(rows: int) -> Iterator[Mapping[str, Values]]:
    return ({} for _ in range(0, rows, BLOCK_ROWS))


def read_labels(table: TableFile, schema: Schema) -> Ints:
    """The numbers of the classes; raises DataError for a missing label and for a text that is not a class."""
    marks, row, found = schema.table.missing_marks, 1, []
    for block in table.blocks([schema.label]):
        found.append(_labels(block[schema.label], schema.classes, marks, Place(table.name, schema.label, row)))
        row += len(found[-1])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def count_rows(table: TableFile) -> int:
    if table.n_rows is not None:
        return table.n_rows
    first = table.columns[0]
    return sum(length_of(block[first]) for block in table.blocks([first]))


def refuse_too_large(rows: int, width: int, where: str) -> None:
    if 4 * rows * width > total_memory():
        raise DataError(
            f"{where}: too large: {rows:,} rows of {width:,} encoded columns need {4 * rows * width / 1e9:,.1f} GB; "
            f"this machine has {total_memory() / 1e9:,.1f} GB. Use fewer rows or columns."
        )


def fitted(table: TableFile, schema: Schema, *, labelled: bool) -> Findings:
    """Which columns are lacking and unused; raises DataError if the table does not fit the schema."""
    known = schema.table.names
    if labelled and schema.label not in table.columns:
        near = nearest(schema.label, table.columns)
        hint = f'Is it "{near}"? Then rename it.' if near else f"Columns: {_listed(table.columns[:20])}."
        raise DataError(f'{table.name}: there is no column "{schema.label}", the label of the schema. {hint}')
    lacking = tuple(name for name in known if name not in table.columns)
    unused = tuple(name for name in table.columns if name not in (*known, schema.label))
    for name in unused:
        if (near := nearest(name, lacking)) is not None:
            raise DataError(
                f'{table.name}, column "{name}": the schema has no such column, but it has "{near}". Rename it; or '
                "remove it if it is something else."
            )
    if len(lacking) == len(known):
        raise DataError(
            f"{table.name}: none of its columns is in the schema. It has {_listed(table.columns[:20])}; the schema has "
            f"{_listed(known[:20])}."
        )
    return Findings(lacking=lacking, unused=unused)


def _encode_numbers(
    column: Number, values: Values, out: Floats, inputs: Table, place: Place, findings: Findings
) -> None:
    numbers = as_numbers(values, inputs.missing_marks, place)
    with np.errstate(over="ignore", invalid="ignore"):
        out[:] = encoded = _scaled(numbers, column)
        if np.isfinite(np.add.reduce(encoded)):  # then all are: the usual case, found in one pass
            return
    missing = np.isnan(numbers)
    if missing.any():
        findings.imputed[column.name] += int(missing.sum())
        numbers = np.where(missing, column.missing, numbers)
    with np.errstate(over="ignore"):
        out[:] = _scaled(numbers, column)
    if not np.isfinite(out).all():
        row = int(np.argmin(np.isfinite(out)))
        raise place.error(row, float(numbers[row]), "is not finite, or too large for a 32-bit number. Correct it.")


def _scaled(numbers: Numbers, column: Number) -> Floats:
    scaled = numbers - column.mean
    scaled /= column.scale
    return scaled.astype(np.float32)


def _encode_categories(
    column: Category, values: Values, out: Floats, inputs: Table, row: int, findings: Findings
) -> None:
    texts = as_texts(values, inputs.missing_marks)
    place = {name: position for position, name in enumerate(column.categories)}
    other = len(column.categories)
    positions = np.array([place.get(name, other) for name in texts.names] + [place[column.missing]], np.int64)
    chosen = positions[texts.codes]
    out[np.arange(len(chosen)), chosen] = 1.0
    if missing := int((texts.codes < 0).sum()):
        findings.imputed[column.name] += missing
    if others := int((chosen == other).sum()):
        findings.other[column.name] += others
        first = int((chosen == other).argmax())
        findings.examples.setdefault(column.name, (row + first, texts.names[texts.codes[first]]))


def _labels(values: Values, classes: Sequence[str], marks: Sequence[str], place: Place) -> Ints:
    numbers = {name: number for number, name in enumerate(classes)}
    kept = [mark for mark in marks if canonical(mark) not in numbers]  # a class may be called "?"
    texts = as_texts(values, kept)
    y = np.array([numbers.get(name, -2) for name in texts.names] + [-1], np.int64)[texts.codes]
    if (y < 0).any():
        row = int((y < 0).argmax())
        if y[row] == -1:
            found = values[row].strip() if isinstance(values, list) else ""  # only a CSV file has a text for it
            raise place.error(row, found, "is a missing label. Remove the row, or look its class up.")
        known = ", ".join(list(numbers)[:20])
        raise place.error(
            row, texts.names[texts.codes[row]], f"is not one of the classes {known}. Correct it, or draft a schema "
            "with this class for all sites."
        )  # fmt: skip
    return y
