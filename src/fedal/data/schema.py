"""The schema of a federation: what one sample is, which classes there are, and how files become numbers.

All sites must use the same schema, or their models would not mean the same thing by the same input. It therefore has a
hash over a canonical text, which does not depend on the layout of the file. Scaling and imputation use statistics of
the public set only, so a schema reveals nothing private. `fedal.data.drafting` makes one.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedal.durable import write_atomically
from fedal.errors import DataError

FORMAT: Literal["fedal-schema-1"] = "fedal-schema-1"
OTHER = "other"  # the code of every category that the public set does not have
MAX_BYTES = 1 << 24  # of a schema file; also bounds what reading a foreign one can cost
MAX_WIDTH = 100_000  # encoded columns

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Number(_Part):
    """A column of numbers, encoded as (x - mean) / scale. `missing` replaces a missing value before that."""

    kind: Literal["number"] = "number"
    name: Name
    mean: float
    scale: Annotated[float, Field(gt=0)]
    missing: float

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        return (self.name,)

    @property
    def imputed(self) -> tuple[float, ...]:
        """A missing value, encoded."""
        return ((self.missing - self.mean) / self.scale,)


class Category(_Part):
    """A column of categories, encoded as one 0/1 column for each, and one for all others. `missing` is one of them."""

    kind: Literal["category"] = "category"
    name: Name
    categories: Annotated[tuple[str, ...], Field(min_length=1)]
    missing: str

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.categories)) < len(self.categories):
            raise ValueError("a category is listed twice")
        if self.missing not in self.categories:
            raise ValueError("missing is not one of the categories")
        return self

    @property
    def codes(self) -> tuple[str, ...]:
        return (*(f"{self.name}={category}" for category in self.categories), f"{self.name}: {OTHER}")

    @property
    def imputed(self) -> tuple[float, ...]:
        return (*(float(category == self.missing) for category in self.categories), 0.0)


Column: TypeAlias = Annotated[Number | Category, Field(discriminator="kind")]


class Table(_Part):
    """Rows of a table, in the order of `columns`. Texts in `missing_marks` count as missing values."""

    kind: Literal["table"] = "table"
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    missing_marks: tuple[str, ...]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.names)) < len(self.columns):
            raise ValueError("a column is listed twice")
        if self.width > MAX_WIDTH:
            raise ValueError(f"{self.width} encoded columns; the limit is {MAX_WIDTH}")
        return self

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first encoded column of each column, and after the last one their number."""
        starts = [0]
        for column in self.columns:
            starts.append(starts[-1] + len(column.codes))
        return tuple(starts)

    @property
    def width(self) -> int:
        return self.starts[-1]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (self.width,)


class Images(_Part):
    """Images of one size with 1 (grey) or 3 (colour) channels, encoded as (pixel / 255 - mean) / std per channel."""

    kind: Literal["images"] = "images"
    height: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[int, Field(ge=1, le=4096)]
    channels: Literal[1, 3]
    order: Literal["chw"] = "chw"
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"expected one mean and one std for each of {self.channels} channels")
        return self

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (self.channels, self.height, self.width)


class Arrays(_Part):
    """Arrays of numbers, used unchanged; pixels of type uint8 are divided by 255."""

    kind: Literal["arrays"] = "arrays"
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    order: Literal["chw"] | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.shape


class Schema(_Part):
    """What all sites of a federation agree on about their data."""

    format: Literal["fedal-schema-1"] = FORMAT
    inputs: Annotated[Table | Images | Arrays, Field(discriminator="kind")]
    classes: Annotated[tuple[Name, ...], Field(min_length=2)]
    label: Name = "label"  # the column of a table that holds the class
    positive: str | None = None  # the class that metrics such as PR-AUC are about

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is listed twice")
        if self.positive is not None and self.positive not in self.classes:
            raise ValueError(f"positive = {self.positive!r} is not one of the classes {', '.join(self.classes)}")
        if isinstance(self.inputs, Table) and self.label in self.inputs.names:
            raise ValueError(f"the label {self.label!r} is also a column of the inputs")
        return self

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.inputs.sample_shape

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def positive_index(self) -> int | None:
        """The number of the positive class."""
        return None if self.positive is None else self.classes.index(self.positive)

    @property
    def table(self) -> Table:
        """The inputs, if they are rows of a table; raises DataError otherwise."""
        if not isinstance(self.inputs, Table):
            raise DataError(f"the schema describes {self.inputs.kind}; expected one of a table.")
        return self.inputs

    @property
    def canonical(self) -> str:
        """The same text for the same schema, whatever the layout of its file: sorted keys, shortest exact numbers."""
        values = self.model_dump(mode="json")
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @property
    def sha256(self) -> str:
        """Names the schema: the hash of its canonical text."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(Path(path), f"{text}\n".encode())


def make_schema(**values: Any) -> Schema:
    """A schema from values given by hand; raises DataError instead of pydantic's error."""
    try:
        return Schema(**values)
    except ValidationError as error:
        raise DataError(f"the schema does not hold together: {_in_words(error)}") from None


def parse_schema(text: str, where: str) -> Schema:
    """The schema in a JSON text; raises DataError."""
    if len(text) > MAX_BYTES:
        raise DataError(f"{where}: {len(text):,} characters; a schema has at most {MAX_BYTES:,}.")
    try:
        return Schema.model_validate_json(text)
    except ValidationError as error:
        raise DataError(
            f"{where}: not a schema: {_in_words(error)} Make one with: fedal schema PUBLIC --classes no,yes"
        ) from None


def load_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in a file; raises DataError."""
    path = Path(path)
    if not path.is_file():
        what = "not a file" if path.exists() else "no such file"
        raise DataError(f"{path}: {what}. Make a schema with: fedal schema PUBLIC --classes no,yes")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes; a schema has at most {MAX_BYTES:,}.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a schema: it is not UTF-8 text ({error.reason}).") from None
    return parse_schema(text, str(path))


def _in_words(error: ValidationError) -> str:
    """The first mistake, with its place."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}."
