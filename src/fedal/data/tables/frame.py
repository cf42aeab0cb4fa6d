"""DataFrames of pandas, column by column, without pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from fedal.data.tables.file import BLOCK_ROWS, refuse_bad_header
from fedal.data.tables.values import DATE_ADVICE, Place, Texts, Values
from fedal.errors import DataError


class Frame:
    """A pandas DataFrame; its index is ignored."""

    columns_at_once = None

    def __init__(self, frame: Any, name: str) -> None:
        self.name, self._frame = name, frame
        self.columns = refuse_bad_header(list(frame.columns), name)
        self.n_rows: int = len(frame)

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, Values]]:
        for start in range(0, self.n_rows, BLOCK_ROWS):
            rows = self._frame.iloc[start : start + BLOCK_ROWS]
            yield {column: _column(rows[column], Place(self.name, column, start + 1)) for column in columns}


def _column(series: Any, place: Place) -> Values:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "mM":
        raise DataError(
            f'{place.source}, column "{place.column}": the values are of type {series.dtype}. {DATE_ADVICE}.'
        )
    if kind in "iuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind == "b":
        series = series.astype(object)
    return _objects(series.to_numpy(dtype=object), series.isna().to_numpy(), place)


def _objects(values: Any, missing: Any, place: Place) -> Values:
    """Texts or numbers in a column of Python objects; both in one column are refused."""
    present = values[~missing]
    if all(isinstance(value, str | bool | np.bool_) for value in present):
        names: dict[str, int] = {}
        codes = np.full(len(values), -1, np.int64)
        codes[~missing] = [names.setdefault(str(value), len(names)) for value in present]
        return Texts(codes, list(names))
    if all(isinstance(value, Real | Decimal) for value in present):
        numbers = np.full(len(values), np.nan)
        numbers[~missing] = [float(value) for value in present]
        return numbers
    first = int(np.argmin(missing))
    odd = [i for i in np.flatnonzero(~missing) if isinstance(values[i], str) != isinstance(values[first], str)]
    row = int(odd[0]) if odd else first
    if isinstance(values[row], date):
        raise place.error(row, values[row], f"is a date. {DATE_ADVICE}.")
    raise place.error(
        row, values[row], f"is of type {type(values[row]).__name__}; expected only numbers or only texts in a column. "
        "Try: .astype(str) for categories, pandas.to_numeric for numbers."
    )  # fmt: skip
