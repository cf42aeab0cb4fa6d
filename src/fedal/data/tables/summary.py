"""What the columns of a table hold, found in one pass: kinds, missing values, distinct values, ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from fedal.data.tables.file import TableFile
from fedal.data.tables.values import DATE, MISSING_MARKS, Numbers, Values, count_texts, is_number, length_of, name_of
from fedal.errors import DataError

Kind = Literal["numbers", "categories", "mixed", "dates", "empty"]


@dataclass
class ColumnSummary:
    """One column. Numbers and texts are counted separately until the whole column is known."""

    name: str
    rows: int = 0
    missing: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    parts: list[Numbers] = field(default_factory=list)

    def add(self, values: Values, marks: Collection[str]) -> None:
        if isinstance(values, np.ndarray):
            absent = np.isnan(values)
            self.parts.append(values[~absent])
            self.rows, self.missing = self.rows + len(values), self.missing + int(absent.sum())
            return
        counts, missing = count_texts(values, marks)
        self.texts.update(counts)
        self.rows, self.missing = self.rows + sum(counts.values()) + missing, self.missing + missing

    @property
    def present(self) -> int:
        return self.rows - self.missing

    @cached_property
    def kind(self) -> Kind:
        if not self.present:
            return "empty"
        if not self.texts:
            return "numbers"
        numeric = sum(map(is_number, self.texts))
        if numeric == len(self.texts):
            return "numbers"
        if numeric or self.parts:
            return "mixed"
        return "dates" if all(DATE.fullmatch(text) for text in self.texts) else "categories"

    @cached_property
    def numbers(self) -> Numbers:
        """All numbers in ascending order, so that statistics do not depend on the order or format of the file."""
        read = np.array([float(text) for text in self.texts], np.float64)
        times = np.array(list(self.texts.values()), np.int64)
        return np.sort(np.concatenate([*self.parts, np.repeat(read, times)]))

    @cached_property
    def categories(self) -> dict[str, int]:
        """category -> how often it occurs, sorted by name."""
        counts = Counter(self.texts)
        for part in self.parts:
            for number, times in zip(*np.unique(part, return_counts=True), strict=True):
                counts[name_of(float(number))] += int(times)
        return dict(sorted(counts.items()))

    @property
    def first_text(self) -> str:
        """A text among numbers."""
        return next(text for text in self.texts if not is_number(text))

    @property
    def distinct(self) -> int:
        return len(self.categories)


def summarise(
    table: TableFile, columns: Sequence[str] | None = None, marks: Collection[str] = MISSING_MARKS
) -> list[ColumnSummary]:
    """A summary of each column; raises DataError if there are no rows."""
    names = table.columns if columns is None else columns
    found = [ColumnSummary(name) for name in names]
    for block in table.blocks(names):
        for column in found:
            column.add(block[column.name], marks)
    if not found or not found[0].rows:
        raise DataError(f"{table.name}: there is a header, but no rows.")
    return found


def row_of(table: TableFile, column: str, text: str) -> int:
    """The first row with this value, counted from 1."""
    seen = 0
    for block in table.blocks([column]):
        values = block[column]
        if isinstance(values, list):
            where = [i for i, each in enumerate(values) if each.strip() == text]
        elif isinstance(values, np.ndarray):
            where = []
        else:
            where = [i for i, code in enumerate(values.codes) if code >= 0 and values.names[code].strip() == text]
        if where:
            return seen + where[0] + 1
        seen += length_of(values)
    return 0
