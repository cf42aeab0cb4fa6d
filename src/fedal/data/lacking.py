"""Columns that an owner does not have: imputed in all its inputs, so that its model never learns from them.

Public batches are named by sample numbers, not by content. Hence the exchange is the same for a site that sees other
values in the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedal.data.dataset import Dataset, Floats, Ints
from fedal.data.schema import Schema


class Imputed(NamedTuple):
    """Encoded columns and the value that each of them has in every sample."""

    columns: Ints
    values: Floats


def imputed_columns(schema: Schema, lacking: Sequence[str]) -> Imputed:
    """The encoded columns of the columns that are lacking."""
    table = schema.table
    columns: list[int] = []
    values: list[float] = []
    for column, (start, stop) in zip(table.columns, pairwise(table.starts), strict=True):
        if column.name in lacking:
            columns += range(start, stop)
            values += column.imputed
    return Imputed(np.array(columns, np.int64), np.array(values, np.float32))


def without_lacking(x: Floats, data: Dataset) -> Floats:
    """The samples as the owner of `data` would have them; the same array if it lacks nothing."""
    return without_columns(x, data.schema, data.lacking)


def without_columns(x: Floats, schema: Schema | None, lacking: Sequence[str]) -> Floats:
    """The samples with these columns imputed; the same array if there are none."""
    if schema is None or not lacking:
        return x
    columns, values = imputed_columns(schema, lacking)
    x = x.copy()
    x[:, columns] = values
    return x
