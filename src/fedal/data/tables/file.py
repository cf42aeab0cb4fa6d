"""What every table offers, whatever holds it: named columns, read in blocks of rows, so that memory stays small."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fedal.data.tables.values import Values
from fedal.errors import DataError

BLOCK_ROWS = 16_384  # an encoded block of 50 columns is 3 MB and stays in the cache while its columns are filled
MAX_COLUMNS = 100_000


class TableFile(Protocol):
    """A table. `blocks` reads it from the beginning, each time it is called."""

    @property
    def name(self) -> str:
        """What errors call it: the path of a file."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def n_rows(self) -> int | None:
        """The number of rows, if it is known before the rows are read."""

    @property
    def columns_at_once(self) -> int | None:
        """How many columns to read in one pass; None: all, because a pass reads the whole file in any case."""

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, Values]]:
        """These columns, at most BLOCK_ROWS rows at a time."""


def refuse_bad_header(columns: Sequence[object], where: str) -> tuple[str, ...]:
    """The column names; raises DataError if one is empty, occurs twice or is not a text."""
    if not columns:
        raise DataError(f"{where}: there are no columns; expected a header with their names.")
    if len(columns) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(columns):,} columns; the limit is {MAX_COLUMNS:,}.")
    for position, column in enumerate(columns, 1):
        if not isinstance(column, str):
            raise DataError(f"{where}: the name of column {position} is {column!r}; expected a text.")
        if not column:
            raise DataError(
                f"{where}: column {position} has no name. Name it in the header; if it holds row numbers that pandas "
                "wrote, save the file with index=False."
            )
    name, times = Counter(columns).most_common(1)[0]
    if times > 1:
        positions = [str(position) for position, column in enumerate(columns, 1) if column == name]
        raise DataError(
            f'{where}: the column "{name}" occurs {times} times (columns {", ".join(positions)}). '
            "Give each a name of its own."
        )
    return tuple(map(str, columns))


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known column that `name` may be another spelling of."""
    spellings = {_plain(each): each for each in known}
    found = difflib.get_close_matches(_plain(name), spellings, n=1, cutoff=0.8)
    return spellings[found[0]] if found else None


def _plain(name: str) -> str:
    return name.casefold().replace(" ", "_").replace("-", "_")
