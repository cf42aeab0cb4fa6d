"""The values of a column, as files hold them: numbers, texts, or the fields of a CSV file, which may be either."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedal.errors import DataError

MISSING_MARKS = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")
"""Texts that stand for a missing value, unless a schema says otherwise."""

DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})([ T].*)?")
DATE_ADVICE = "Turn dates into numbers, such as days before a fixed day, or leave the column out"
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
INTEGRAL = re.compile(r"([-+]?\d+)\.0+")

Numbers: TypeAlias = NDArray[np.float64]


class Texts(NamedTuple):
    """Texts by number: value i is names[codes[i]]; -1 is a missing value."""

    codes: NDArray[np.int64]
    names: list[str]


Fields: TypeAlias = list[str]
"""The fields of a CSV column, with spaces and marks of missing values as they are in the file."""

Values: TypeAlias = Numbers | Texts | Fields
"""NaN is a missing number."""


@dataclass(frozen=True)
class Place:
    """Where values come from, for errors: a file, a column and the number of the first row, counted from 1."""

    source: str
    column: str
    first_row: int = 1

    def error(self, index: int, value: object, expected: str) -> DataError:
        """The value at this index is not what was expected."""
        return DataError(f'{self.source}, column "{self.column}", row {self.first_row + index}: {value!r} {expected}')


def length_of(values: Values) -> int:
    return len(values.codes) if isinstance(values, Texts) else len(values)


def canonical(text: str) -> str:
    """One spelling of a category or class: no spaces around it, and `1.0` is `1`, as a column of integers has it."""
    text = text.strip()
    integral = INTEGRAL.fullmatch(text)
    return integral[1] if integral else text


def name_of(number: float) -> str:
    """The category or class that a number names: 1.0 -> `1`."""
    return str(int(number)) if number.is_integer() else repr(number)


def is_number(text: str) -> bool:
    try:
        return "_" not in text and math.isfinite(float(text))  # Python reads 1_000 as a number; other readers do not
    except ValueError:
        return False


def as_numbers(values: Values, marks: Collection[str], place: Place) -> Numbers:
    """The values as numbers; NaN for a missing one. Raises DataError for a text."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Texts):
        if not values.names:
            return np.full(len(values.codes), np.nan)
        parsed = np.array([_number(name, marks) for name in values.names] + [math.nan], np.float64)
        bad = [i for i, name in enumerate(values.names) if name.strip() not in marks and not is_number(name)]
        wrong = np.isin(values.codes, bad)
        if wrong.any():
            row = int(wrong.argmax())
            raise not_a_number(place, row, values.names[values.codes[row]])
        return np.asarray(parsed[values.codes])
    try:
        if "_" not in "".join(values):
            return np.fromiter(map(float, values), np.float64, len(values))
    except ValueError:
        pass
    for row, text in enumerate(values):
        if text.strip() not in marks and not is_number(text):
            raise not_a_number(place, row, text)
    return np.fromiter((_number(text, marks) for text in values), np.float64, len(values))


def _number(text: str, marks: Collection[str]) -> float:
    return float(text) if text.strip() not in marks and is_number(text) else math.nan


def not_a_number(place: Place, row: int, text: str) -> DataError:
    advice = "Correct it, or leave it empty if it is missing."
    if DATE.fullmatch(text.strip()):
        advice = f"It looks like a date. {DATE_ADVICE} of the file: a missing column is imputed."
    elif DECIMAL_COMMA.fullmatch(text.strip()):
        advice = f"Write {text.strip().replace(',', '.')!r}, with a decimal point."
    return place.error(row, text[:80], f"is not a finite number, as the schema expects. {advice}")


def as_texts(values: Values, marks: Collection[str]) -> Texts:
    """The values as categories, each in its canonical spelling."""
    if isinstance(values, np.ndarray):
        present = ~np.isnan(values)
        distinct, inverse = np.unique(values[present], return_inverse=True)
        codes = np.full(len(values), -1, np.int64)
        codes[present] = inverse
        return Texts(codes, [name_of(float(number)) for number in distinct])
    if isinstance(values, Texts):
        fields, back = values.names, values.codes
    else:
        numbers: dict[str, int] = {}
        back = np.fromiter((numbers.setdefault(text, len(numbers)) for text in values), np.int64, len(values))
        fields = list(numbers)
    names: dict[str, int] = {}
    spelled = [-1 if text.strip() in marks else names.setdefault(canonical(text), len(names)) for text in fields]
    return Texts(np.array([*spelled, -1], np.int64)[back], list(names))


def count_texts(values: Values, marks: Collection[str]) -> tuple[dict[str, int], int]:
    """category -> how often it occurs, and the number of missing values."""
    texts = as_texts(values, marks)
    counts = np.bincount(texts.codes + 1, minlength=len(texts.names) + 1)
    return dict(zip(texts.names, map(int, counts[1:]), strict=True)), int(counts[0])
