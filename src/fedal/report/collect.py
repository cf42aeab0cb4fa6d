"""Reads run folders as plain data. A folder is untrusted: nothing in it is imported or executed.

Each missing or damaged part becomes a sentence in `Record.problems`; the report shows the rest.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedal.data.npz import UNREADABLE, refuse_bad_npz
from fedal.data.partition import effective_classes
from fedal.errors import ConfigError
from fedal.records.folder import RunFolder
from fedal.records.statistics import Row, final_row
from fedal.report.scores_file import Scores, parse_scores

DEPTH = 3  # search run folders this many levels below the given folder
MAX_BYTES = 200_000_000  # per file
MAX_COUNTS = 10_000_000  # bytes for the client x class table
LONGEST_TEXT = 500
TEXTS = {"phase", "client", "model"}  # text columns of a row; all others are numbers


@dataclass
class Record:
    """One run folder."""

    name: str  # path relative to the given folder
    method: str = "unknown"
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    analysis: dict[str, Any] = field(default_factory=dict)  # from `fedal analyse`
    rows: list[Row] = field(default_factory=list)
    client_rows: list[Row] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)  # in the order of the rows of `class_counts`
    class_counts: list[list[int]] = field(default_factory=list)
    unassigned: int | None = None  # training samples without an owner, if the partition says so
    output_matrices: dict[str, list[list[float]]] = field(default_factory=dict)  # name -> clients x classes
    scores: Scores | None = None  # of the final models, if the run records more than accuracy
    is_complete: bool = False
    is_server: bool = False  # folder of a deployed server: data and models are at the sites
    problems: list[str] = field(default_factory=list)

    @property
    def effective_classes(self) -> float | None:
        """exp(entropy of a client's class shares), mean over clients; nothing where the partition is not known."""
        return effective_classes(np.array(self.class_counts, np.float64).clip(0)) if self.class_counts else None

    @property
    def final(self) -> Row | None:
        """The row that tables use: the final models on the whole test set."""
        return final_row(self.rows)

    @property
    def final_clients(self) -> list[Row]:
        return [row for row in self.client_rows if row["final"]]


@dataclass
class Collection:
    """All runs below the given folders."""

    records: list[Record]
    order: list[str]  # the order of methods in the comparisons
    not_applicable: dict[str, str]  # method -> reason for having no run
    problems: list[str]


def collect(folders: Sequence[Path]) -> Collection:
    """Reads every run folder at or below each of `folders`. Raises ConfigError if there is none at all."""
    found = Collection([], [], {}, [])
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder. Give the folder of a run or a comparison.")
        runs = list(_run_folders(folder, DEPTH))
        if not runs:
            found.problems.append(
                f"{folder}: no run in this folder or below it (no config.toml or metrics.jsonl). "
                "Start a run with `fedal run`, or a comparison with `fedal compare`."
            )
        for path in runs:
            name = path.relative_to(folder).as_posix() if path != folder else path.resolve().name
            found.records.append(read_record(path, clean(name)))
        _read_table(folder, found)
    if not found.records:
        raise ConfigError("\n".join(found.problems))
    return found


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).exists() for name in ("config.toml", "metrics.jsonl")):
        yield folder
    elif depth:
        for inner in sorted(folder.iterdir(), key=_natural):
            if inner.is_dir() and not inner.is_symlink():
                yield from _run_folders(inner, depth - 1)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)]


def _read_table(folder: Path, found: Collection) -> None:
    """Reads a comparison's table.csv, the only record of the methods' order and of methods that do not apply."""
    path = folder / "table.csv"
    if not path.is_file():
        return
    try:
        lines = list(csv.DictReader(io.StringIO(_text(path))))
    except (OSError, ValueError, csv.Error):
        found.problems.append(f"{folder.name}/table.csv cannot be read; methods are listed in alphabetical order.")
        return
    for line in lines:
        method = clean(line.get("method") or "")
        found.order.append(method)
        if line.get("not_applicable"):
            found.not_applicable[method] = clean(line["not_applicable"])


def read_record(path: Path, name: str) -> Record:
    """Reads one run folder, as far as possible."""
    folder = RunFolder(path)
    record = Record(name, is_server=folder.is_server)
    record.config = _part(record, folder.config, lambda path: clean(tomllib.loads(_text(path))), {})
    record.environment = _part(record, folder.environment, _json_object, {})
    record.rows = _part(record, folder.metrics, lambda path: _rows(path, record), [])
    record.client_rows = _part(record, folder.clients, lambda path: _rows(path, record), [])
    if not record.is_server:
        lost = "; the clients' data are not shown"
        found = _part(record, folder.partition, _class_counts, ([], [], None), lost)
        record.clients, record.class_counts, record.unassigned = found
    if (path / "analysis" / "analysis.json").exists():
        record.analysis = _part(record, path / "analysis" / "analysis.json", _json_object, {})
    if (path / "analysis" / "output-matrix.json").exists():
        record.output_matrices = _part(record, path / "analysis" / "output-matrix.json", _matrices, {})
    if folder.scores.exists():
        record.scores = _part(record, folder.scores, lambda path: parse_scores(_json_object(path)), None)
    _name_method(record, path)
    record.is_complete = record.final is not None
    _note_state(record, folder)
    return record


def _name_method(record: Record, path: Path) -> None:
    """Sets method and seed from the config, else from a comparison's folder names: METHOD/seed-S."""
    seed = re.fullmatch(r"seed-(\d{1,9})", path.name)
    guess = path.resolve().parent.name if seed else path.resolve().name
    method = record.config.get("method")
    record.method = method if isinstance(method, str) else clean(guess)
    written = record.config.get("seed")
    record.seed = written if isinstance(written, int) else int(seed[1]) if seed else 0


def _note_state(record: Record, folder: RunFolder) -> None:
    if folder.failure.exists():
        failure = _part(record, folder.failure, _json_object, {})
        record.problems.append(f"the run failed: {failure.get('error', 'reason unreadable')}")
    if record.is_complete:
        return
    last = record.rows[-1]["iteration"] if record.rows else 0
    planned = record.config.get("iterations")
    reached = f"{last:g} of {planned}" if isinstance(planned, int) else f"{last:g}"
    record.problems.append(
        f"not complete: recorded up to iteration {reached}, so it is left out of the tables of final models. "
        f"Resume it with {'the same `fedal serve`' if record.is_server else '`fedal resume`'}."
    )


def _part(record: Record, path: Path, parse: Callable[[Path], Any], otherwise: Any, lost: str = "") -> Any:
    """The parsed file; if it cannot be read, `otherwise`, and a problem that ends with `lost`, the consequence."""
    if not path.is_file():
        record.problems.append(f"{path.name} is missing{lost}")
        return otherwise
    try:
        return parse(path)
    except (*UNREADABLE, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else clean(str(error)) or "nested too deeply"
        record.problems.append(f"{path.name} cannot be read ({reason}){lost}")
        return otherwise


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1_000_000} MB")
    return path.read_text(encoding="utf-8", errors="replace")


def _json_object(path: Path) -> dict[str, Any]:
    value = json.loads(_text(path))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    cleaned: dict[str, Any] = clean(value)
    return cleaned


def _matrices(path: Path) -> dict[str, list[list[float]]]:
    """`{"before": [[p, ...], ...], "after": ...}`: one row per client, one probability per class."""
    matrices = _json_object(path)
    for name, rows in matrices.items():
        try:
            found = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError):
            found = np.empty(0)
        if found.ndim != 2 or not found.size or not ((found >= 0) & (found <= 1)).all():
            raise ValueError(f'"{name}" is not a table of probabilities')
    return matrices


def _rows(path: Path, record: Record) -> list[Row]:
    rows, damaged, text, file = [], [], _text(path), path.name
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        row = _row(line)
        if row is None:
            damaged.append(number)
        else:
            rows.append(row)
    if damaged:
        where = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines (first: line {damaged[0]})"
        record.problems.append(f"{file}: skipped {where}, which cannot be read")
    for key in ("test_accuracy", "up_bytes", "seconds"):
        if any(key in row for row in rows):  # a column that all rows lack was never recorded
            for row in rows:
                row.setdefault(key, math.nan)
    _note_not_finite(rows, record, file)
    return rows


def _note_not_finite(rows: list[Row], record: Record, file: str) -> None:
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if value != value)
    for key in keys:
        at = [f"{row['iteration']:g}" for row in rows if row.get(key) != row.get(key)]
        record.problems.append(
            f"{file}: {key} is not a number (NaN) in {len(at)} of {len(rows)} rows, first at iteration {at[0]}"
        )


def _row(line: str) -> Row | None:
    """The row with its texts and finite numbers; any other value in place of a number becomes nan."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not math.isfinite(_number(values.get("iteration"))):
        return None
    row = {clean(key): clean(str(value)) if key in TEXTS else _number(value) for key, value in values.items()}
    return {"phase": "after_global", **row, "final": values.get("final") is True}


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _class_counts(path: Path) -> tuple[list[str], list[list[int]], int | None]:
    """The clients' names, the client x class table (one row per client), and the number of unassigned samples."""
    refuse_bad_npz(path)
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        read = {"class_counts.npy", "leftovers.npy"} & {"class_counts.npy", *archive.namelist()}
        if any(archive.getinfo(name).file_size > MAX_COUNTS for name in read):
            raise ValueError("table too large")
    with np.load(path, allow_pickle=False) as arrays:
        counts, left = arrays["class_counts"], arrays.get("leftovers", np.empty(0))
    clients = [clean(name.removeprefix("client/")) for name in names if name.startswith("client/")]
    if counts.ndim != 2 or len(counts) != len(clients) or counts.dtype.kind not in "iu":
        raise ValueError("the table does not match the clients")
    return clients, counts.tolist(), int(left) if left.ndim == 0 and left.dtype.kind in "iu" else None


def clean(value: Any) -> Any:
    """The value with texts that are safe to display: control and direction characters replaced, long texts cut."""
    if isinstance(value, str):
        shown = "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in value)
        return shown if len(shown) <= LONGEST_TEXT else shown[:LONGEST_TEXT] + "…"
    if isinstance(value, dict):
        return {clean(str(key)): clean(part) for key, part in value.items()}
    if isinstance(value, list):
        return [clean(part) for part in value]
    return value
