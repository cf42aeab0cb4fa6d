"""CSV files, read with the standard library: UTF-8, fields separated by commas, semicolons or tabs, a header line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TextIO

from fedal.data.tables.file import BLOCK_ROWS, refuse_bad_header
from fedal.data.tables.values import Values
from fedal.errors import DataError

SEPARATORS = (",", ";", "\t")
MAX_HEADER = 1 << 24  # characters


class CsvFile:
    """A CSV file. The separator is the one that occurs most often in the header."""

    n_rows = None  # unknown before the file is read
    columns_at_once = None

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, str(path)
        with path.open("rb") as file:
            start = file.read(2)
        if start in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{path}: the text is UTF-16. Save it as UTF-8; in Excel, as `CSV UTF-8`.")
        if start == b"PK":
            raise DataError(f"{path}: a zip archive, perhaps an Excel file. Save it as CSV (UTF-8) or Parquet.")
        with self._reading(), self._open() as text:
            head = text.readline(MAX_HEADER)
            self._separator = max(SEPARATORS, key=head.count)
            text.seek(0)
            fields = next(csv.reader(text, delimiter=self._separator, strict=True), [])
        if not any(fields):
            raise DataError(f"{path}: the file is empty; expected a header line with the names of the columns.")
        self.columns = refuse_bad_header([field.strip() for field in fields], self.name)
        if len(self.columns) == 1:
            raise DataError(
                f'{path}: one column only, "{self.columns[0][:80]}". Separate the fields by commas, semicolons or tabs.'
            )

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, Values]]:
        wanted = {column: self.columns.index(column) for column in columns}
        first_row = 1
        with self._open() as text:
            rows = filter(None, csv.reader(text, delimiter=self._separator, strict=True))  # without empty lines
            next(rows)
            while True:
                with self._reading(first_row):
                    block = list(islice(rows, BLOCK_ROWS))
                if not block:
                    return
                self._refuse_ragged(block, first_row)
                by_column = list(zip(*block, strict=True))
                yield {column: list(by_column[index]) for column, index in wanted.items()}
                first_row += len(block)

    def _refuse_ragged(self, block: list[list[str]], first_row: int) -> None:
        width = len(self.columns)
        bad = next((i for i, fields in enumerate(block) if len(fields) != width), None)
        if bad is not None:
            raise DataError(
                f"{self._path}, row {first_row + bad}: {len(block[bad])} fields, the last {block[bad][-1][:80]!r}; "
                f'expected {width}, the last for column "{self.columns[-1]}". Put a field that contains '
                f"{self._separator!r} into double quotes."
            )

    def _open(self) -> TextIO:
        return self._path.open(encoding="utf-8-sig", newline="")  # without the byte order mark that Excel writes

    @contextmanager
    def _reading(self, first_row: int = 1) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:
            raise self._wrong_encoding() from None
        except csv.Error as error:
            raise DataError(
                f"{self._path}, in or after row {first_row}: {error}. Is a double quote left open or not doubled?"
            ) from None

    def _wrong_encoding(self) -> DataError:
        """Finds the first line that is not UTF-8; the header is line 1."""
        with self._path.open("rb") as file:
            for line, content in enumerate(file, 1):
                try:
                    content.decode()
                except UnicodeDecodeError as error:
                    around = content[max(0, error.start - 10) : error.start + 10].decode("latin-1")
                    return DataError(
                        f"{self._path}, row {line - 1}: not UTF-8 text: byte 0x{content[error.start]:02x} near "
                        f"{around!r}. Save the file as UTF-8, for instance: "
                        f"iconv -f WINDOWS-1252 -t UTF-8 {self._path.name} > utf8.csv"
                    )
        raise AssertionError("a decoding error without a wrong byte")
