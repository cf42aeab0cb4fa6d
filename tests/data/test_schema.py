"""A schema: its encoding by hand, one hash for one meaning, and no other file taken for one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fedal.data.schema import Category, Images, Number, Schema, Table, load_schema, make_schema, parse_schema
from fedal.errors import DataError

AGE = Number(name="age", mean=40.0, scale=10.0, missing=35.0)
JOB = Category(name="job", categories=("clerk", "nurse"), missing="nurse")
TABLE = Table(columns=(AGE, JOB), missing_marks=("", "NA"))
SCHEMA = Schema(inputs=TABLE, classes=("no", "yes"), label="default", positive="yes")


def test_a_missing_value_is_encoded_by_public_statistics() -> None:
    assert AGE.imputed == (-0.5,)
    assert JOB.imputed == (0.0, 1.0, 0.0)
    assert JOB.codes == ("job=clerk", "job=nurse", "job: other")
    assert TABLE.starts == (0, 1, 4) and SCHEMA.sample_shape == (4,)
    assert SCHEMA.n_classes == 2 and SCHEMA.positive_index == 1


def test_the_hash_is_that_of_the_canonical_text_and_not_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    SCHEMA.save(path)
    assert load_schema(path) == SCHEMA
    values = json.loads(path.read_text(encoding="utf-8"))
    shuffled = json.dumps(dict(reversed(values.items())), indent=7)
    again = parse_schema(shuffled, "here")
    assert again.sha256 == SCHEMA.sha256 == hashlib.sha256(SCHEMA.canonical.encode()).hexdigest()
    assert '"mean":40.0' in SCHEMA.canonical and ": " not in SCHEMA.canonical.replace("job: other", "")
    other = parse_schema(path.read_text(encoding="utf-8").replace("40.0", "40.000000000000007"), "here")
    assert other.sha256 != SCHEMA.sha256


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"classes": ["no"]}, "classes: .*at least 2"),
        ({"classes": ["no", "no"]}, "a class is listed twice"),
        ({"positive": "maybe"}, "positive = 'maybe' is not one of the classes no, yes"),
        ({"label": "age"}, "the label 'age' is also a column"),
        ({"surprise": 1}, "surprise: .*not permitted"),
        ({"format": "fedal-schema-9"}, "format: "),
        ({"inputs": {"kind": "sound"}}, "inputs: "),
    ],
)
def test_what_does_not_hold_together_is_refused(change: dict[str, Any], told: str) -> None:
    values = json.loads(SCHEMA.canonical) | change
    with pytest.raises(DataError, match=f"here: not a schema: {told}"):
        parse_schema(json.dumps(values), "here")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b'{"classes": ["a", "b"]}'])
def test_another_file_is_not_a_schema(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"schema\.json: not a schema"):
        load_schema(path)
    with pytest.raises(DataError, match=r"no such file\. Make a schema with: fedal schema PUBLIC"):
        load_schema(tmp_path / "nothing.json")
    with pytest.raises(DataError, match="not a file"):
        load_schema(tmp_path)


def test_a_schema_made_by_hand_names_the_mistake() -> None:
    images: dict[str, Any] = dict(height=8, width=8, channels=3, mean=(0.5,), std=(0.5,))
    with pytest.raises(DataError, match="expected one mean and one std for each of 3 channels"):
        make_schema(inputs={"kind": "images", **images}, classes=("cat", "dog"))
    grey = Images(height=4, width=6, channels=1, mean=(0.5,), std=(0.25,))
    assert make_schema(inputs=grey, classes=("cat", "dog")).sample_shape == (1, 4, 6)
    with pytest.raises(DataError, match="describes images; expected one of a table"):
        _ = make_schema(inputs=grey, classes=("cat", "dog")).table
