"""Parquet files and tables in memory, read with pyarrow in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedal.data.tables.file import BLOCK_ROWS, refuse_bad_header
from fedal.data.tables.values import DATE_ADVICE, Texts, Values
from fedal.errors import DataError

COLUMN_BUFFER = 1 << 18  # bytes read at once per column; without this limit a whole row group would be in memory


class ParquetFile:
    """A Parquet file. A reader holds a few pages of every column it reads, 1 MB each: hence few columns at once."""

    columns_at_once = 6

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        need_pyarrow(self.name)
        with _reading(self.name), self._opened() as file:
            self._schema, self.n_rows = file.schema_arrow, int(file.metadata.num_rows)
        self.columns = refuse_bad_header(self._schema.names, self.name)

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, Values]]:
        refuse_types(self._schema, columns, self.name)
        with _reading(self.name), self._opened() as file:  # a reader of its own: several threads read at once
            for batch in file.iter_batches(BLOCK_ROWS, columns=list(columns), use_threads=False):
                yield _values_of(batch)
        need_pyarrow(self.name).default_memory_pool().release_unused()  # else its pages add to what follows

    def _opened(self) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._path, pre_buffer=False, buffer_size=COLUMN_BUFFER)


class ArrowTable:
    """A table in memory that pyarrow can read, such as one of polars or pyarrow itself."""

    columns_at_once = None

    def __init__(self, table: Any, name: str) -> None:
        self.name = name
        pa = need_pyarrow(name)
        self._table = pa.table(table)
        self.columns = refuse_bad_header(self._table.column_names, name)
        self.n_rows: int = self._table.num_rows

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, Values]]:
        refuse_types(self._table.schema, columns, self.name)
        for batch in self._table.select(list(columns)).to_batches(max_chunksize=BLOCK_ROWS):
            yield _values_of(batch)


def need_pyarrow(where: str) -> ModuleType:
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{where}: reading it needs pyarrow. Type: pip install 'fedal[parquet]'") from None
    return pyarrow  # type: ignore[no-any-return]


@contextmanager
def _reading(where: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"{where}: not an intact Parquet file ({words[0][:200]}). Write it again.") from None


def refuse_types(schema: Any, columns: Sequence[str], where: str) -> None:
    """Raises DataError if a column is of a type that cannot be encoded."""
    from pyarrow import types

    for column in columns:
        found = schema.field(column).type
        kind = found.value_type if types.is_dictionary(found) else found
        if types.is_temporal(kind):
            raise DataError(f'{where}, column "{column}": the values are of type {found}. {DATE_ADVICE}.')
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        if not (is_text or types.is_boolean(kind) or _is_number(kind) or types.is_null(kind)):
            raise DataError(f'{where}, column "{column}": the values are of type {found}; expected numbers or texts.')


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _values_of(batch: Any) -> dict[str, Values]:
    return {name: _column(batch.column(i)) for i, name in enumerate(batch.schema.names)}


def _column(values: Any) -> Values:
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(values.type) and _is_number(values.type.value_type):
        values = values.dictionary_decode()
    if types.is_null(values.type):
        return np.full(len(values), np.nan)
    if _is_number(values.type):
        return _array(_as_type(values, pa.float64()), np.float64, np.nan)
    if types.is_boolean(values.type):
        return Texts(_array(_as_type(values, pa.int64()), np.int64, -1), ["False", "True"])
    if not types.is_dictionary(values.type):
        values = values.dictionary_encode()
    codes = _array(_as_type(values.indices, pa.int64()), np.int64, -1)
    names = values.dictionary.to_pylist()
    if None in names:  # a dictionary may itself contain a null
        empty = names.index(None)
        codes, names[empty] = np.where(codes == empty, -1, codes), ""
    return Texts(codes, names)


def _as_type(values: Any, kind: Any) -> Any:
    return values if values.type == kind else values.cast(kind, safe=False)


def _array(values: Any, dtype: Any, null: float) -> NDArray[Any]:
    """The values without a copy if none is null. pyarrow's own conversion would import pandas, which takes 60 MB."""
    valid, data = values.buffers()
    if not len(values):
        return np.empty(0, dtype)
    where = slice(values.offset, values.offset + len(values))
    found = np.frombuffer(data, dtype)[where]
    if not values.null_count:
        return found
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[where]
    return np.where(bits == 1, found, dtype(null))
