"""Tables: one encoding, computed by hand, whatever holds the values; what a site lacks; what a public set drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedal.data.drafting import draft_schema
from fedal.data.inspecting import contents, verdicts
from fedal.data.lacking import without_lacking
from fedal.data.reading import read_data, read_public
from fedal.data.schema import Arrays, Category, Number, Schema, Table, make_schema
from fedal.data.tables import arrow, csv_file, encoding, frame
from fedal.errors import DataError
from optional import needs

AGE = Number(name="age", mean=40.0, scale=10.0, missing=35.0)
JOB = Category(name="job", categories=("clerk", "nurse"), missing="nurse")
SCHEMA = Schema(
    inputs=Table(columns=(AGE, JOB), missing_marks=("", "NA")),
    classes=("no", "yes"),
    label="default",
    positive="yes",
)
AGES = [50.0, None, 30.0, 40.0, 45.0, 20.0]
JOBS = ["clerk", "pilot", None, "nurse", "clerk", "clerk"]
LABELS = ["no", "no", "no", "no", "no", "yes"]
ENCODED = np.array(
    [[1, 1, 0, 0], [-0.5, 0, 0, 1], [-1, 0, 1, 0], [0, 0, 1, 0], [0.5, 1, 0, 0], [-2, 1, 0, 0]], np.float32
)
CSV = "default,age,job\n" + "".join(
    f"{y},{'' if a is None else a},{j or 'NA'}\n" for y, a, j in zip(LABELS, AGES, JOBS, strict=True)
)


def written(folder: Path, text: str = CSV, name: str = "site.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def table() -> Any:
    pa = needs("pyarrow", "parquet")
    return pa.table({"default": LABELS, "age": AGES, "job": JOBS})


def parquet(folder: Path) -> Path:
    pq = needs("pyarrow.parquet", "parquet")
    pq.write_table(table(), folder / "site.parquet", use_dictionary=["job"])
    return folder / "site.parquet"


def sources(folder: Path) -> dict[str, Any]:
    pd = needs("pandas", "pandas")
    return {
        "csv": written(folder),
        "semicolons": written(folder, CSV.replace(",", ";"), "semicolons.csv"),
        "byte order mark": written(folder, "\ufeff" + CSV, "mark.csv"),
        "windows lines": written(folder, CSV.replace("\n", "\r\n"), "lines.csv"),
        "tabs": written(folder, CSV.replace(",", "\t"), "site.tsv"),
        "parquet": parquet(folder),
        "pyarrow": table(),
        "pandas": pd.DataFrame({"default": LABELS, "age": AGES, "job": JOBS}),
        "pandas categories": pd.DataFrame({"default": LABELS, "age": AGES, "job": pd.Categorical(JOBS)}),
    }


def test_every_source_has_the_encoding_computed_by_hand(tmp_path: Path) -> None:
    for name, source in sources(tmp_path).items():
        data = read_data(source, SCHEMA)
        assert data.train_x.tobytes() == ENCODED[[0, 1, 2, 3, 5]].tobytes(), name
        assert data.test_x.tobytes() == ENCODED[[4]].tobytes(), "every fifth row of a class"
        assert data.train_y.tolist() == [0, 0, 0, 0, 1] and data.test_y.tolist() == [0]
        assert data.class_names == ("no", "yes") and data.schema is SCHEMA and data.lacking == ()
        assert read_public(source, SCHEMA).tobytes() == ENCODED.tobytes(), name
        assert [note.partition(", ")[2] for note in data.notes] == [
            'column "age": 1 missing value imputed',
            'column "job": 1 missing value imputed',
            'column "job": 1 value of no category of the schema, taken as "other"; the first is \'pilot\' in row 2',
        ]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", ["csv", "parquet", "pyarrow", "pandas"])
def test_the_size_of_a_block_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int
) -> None:
    source = sources(tmp_path)[kind]
    for module in (csv_file, arrow, frame, encoding):
        monkeypatch.setattr(module, "BLOCK_ROWS", rows)
    monkeypatch.setattr(arrow.ParquetFile, "columns_at_once", 1)
    data = read_data(source, SCHEMA)
    assert data.train_x.tobytes() == ENCODED[[0, 1, 2, 3, 5]].tobytes()
    assert "the first is 'pilot' in row 2" in data.notes[-1]


def test_threads_that_read_a_parquet_file_change_neither_values_nor_the_order_of_notes_and_errors(
    tmp_path: Path,
) -> None:
    pa, pq = needs("pyarrow", "parquet"), needs("pyarrow.parquet", "parquet")
    names = [f"x{i}" for i in range(20)]  # read in four groups, two of them at a time
    columns: dict[str, Any] = {name: [float(i), None, 2.0, 3.0, 4.0, 5.0] for i, name in enumerate(names)}
    numbers = tuple(Number(name=name, mean=1.0, scale=2.0, missing=7.0) for name in names)
    schema = Schema(inputs=Table(columns=numbers, missing_marks=("",)), classes=("no", "yes"))

    def file_of(columns: dict[str, Any]) -> Path:
        pq.write_table(pa.table({**columns, "label": ["no"] * 6}), tmp_path / "wide.parquet")
        return tmp_path / "wide.parquet"

    found = read_public(file_of(columns), schema)
    assert found[:, 3].tolist() == [1.0, 3.0, 0.5, 1.0, 1.5, 2.0] and (found[0] == (np.arange(20) - 1) / 2).all()
    assert (
        read_data(file_of(columns), schema)
        .notes[0]
        .endswith('20 missing values imputed in 20 columns: "x0", "x1", "x2", "x3", "x4" and 15 more')
    )
    for _ in range(5):
        with pytest.raises(DataError, match=r'column "x7", row 2: inf is not finite'):
            read_data(file_of(columns | {name: [0, np.inf, 0, 0, 0, 0] for name in ("x19", "x13", "x7")}), schema)


def test_the_type_of_a_column_in_parquet_does_not_matter(tmp_path: Path) -> None:
    pa, pq = needs("pyarrow", "parquet"), needs("pyarrow.parquet", "parquet")
    from decimal import Decimal

    codes = Table(columns=(AGE, Category(name="code", categories=("1", "2"), missing="1")), missing_marks=("",))
    schema = Schema(inputs=codes, classes=("0", "1"))
    labels = pa.array([0, 1, 1, 1, 1, 1], pa.int8())
    expected = read_data(table_of(tmp_path, "age,code,label\n" + "50,1.0,0\n" + "50,2,1\n" * 5), schema)
    for ages in (pa.array([50] * 6, pa.uint8()), pa.array([Decimal("50.0")] * 6), pa.array([50.0] * 6, pa.float32())):
        for kind in (pa.int64(), pa.float64(), pa.string(), pa.dictionary(pa.int8(), pa.string())):
            values = [1, 2, 2, 2, 2, 2]
            column = pa.array(values, kind) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None
            column = pa.array(list(map(str, values))).cast(kind) if column is None else column
            pq.write_table(pa.table({"age": ages, "code": column, "label": labels}), tmp_path / "typed.parquet")
            found = read_data(tmp_path / "typed.parquet", schema)
            assert found.train_x.tobytes() == expected.train_x.tobytes() and not found.notes
    flags = Table(columns=(Category(name="flag", categories=("False", "True"), missing="True"),), missing_marks=())
    pq.write_table(pa.table({"flag": [True, None, False, True, True], "label": ["a"] * 5}), tmp_path / "flag.parquet")
    found = read_data(tmp_path / "flag.parquet", Schema(inputs=flags, classes=("a", "b")))
    assert found.train_x.argmax(1).tolist() == [1, 1, 0, 1]


def table_of(folder: Path, text: str) -> Path:
    return written(folder, text, "other.csv")


def test_a_site_that_lacks_a_column_has_it_imputed_in_its_private_and_public_inputs(tmp_path: Path) -> None:
    path = written(tmp_path, "default,job\n" + "no,clerk\n" * 6)
    data = read_data(path, SCHEMA)
    assert data.lacking == ("age",) and (data.train_x[:, 0] == -0.5).all() and (data.train_x[:, 1] == 1).all()
    assert data.notes[0].startswith(f'{path}: it lacks "age": imputed in its private and in its public inputs')
    assert data.notes[1] == f"{path}: no row is of class yes"
    public = read_public(written(tmp_path, CSV, "public.csv"), SCHEMA)
    seen = without_lacking(public, data)
    assert (seen[:, 0] == -0.5).all() and (seen[:, 1:] == public[:, 1:]).all() and (public[:, 0] == ENCODED[:, 0]).all()
    whole = read_data(written(tmp_path, CSV, "whole.csv"), SCHEMA)
    assert without_lacking(public, whole) is public


def test_a_block_of_columns_that_are_all_lacking_is_imputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = needs("pyarrow", "parquet"), needs("pyarrow.parquet", "parquet")
    pq.write_table(pa.table({"default": ["no"] * 6, "job": ["clerk"] * 6}), tmp_path / "site.parquet")
    monkeypatch.setattr(arrow.ParquetFile, "columns_at_once", 1)
    for rows in (4, 100):
        monkeypatch.setattr(encoding, "BLOCK_ROWS", rows)
        data = read_data(tmp_path / "site.parquet", SCHEMA)
        assert (data.train_x == np.array([-0.5, 1, 0, 0], np.float32)).all() and len(data.train_x) == 5


def test_a_draft_holds_the_statistics_of_the_public_set(tmp_path: Path) -> None:
    expected = make_schema(
        inputs=Table(
            columns=(
                Number(name="age", mean=37.0, scale=float(np.std([20, 30, 40, 45, 50])), missing=40.0),
                Category(name="job", categories=("clerk", "nurse", "pilot"), missing="clerk"),
            ),
            missing_marks=("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "-9"),
        ),
        classes=("no", "yes"),
        label="default",
        positive="yes",
    )
    for name, source in sources(tmp_path).items():
        drafted = draft_schema(source, ("no", "yes"), label="default", missing_marks=["-9"])
        assert drafted == expected, name
        assert drafted.sha256 == expected.sha256


def test_a_draft_leaves_out_and_takes_codes_for_categories_as_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "id,zone,flat\n" + "".join(f"p{i},{i % 3},7\n" for i in range(9)))
    drafted = draft_schema(path, ("a", "b", "c"), without=["id"], categories=["zone"]).table
    zone, flat = drafted.columns
    assert zone == Category(name="zone", categories=("0", "1", "2"), missing="0")
    assert flat == Number(name="flat", mean=7.0, scale=1.0, missing=7.0), "a constant column is not scaled"
    with pytest.raises(DataError, match=r'no column "Zone"\. Did you mean "zone"\?'):
        draft_schema(path, ("a", "b"), categories=["Zone"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("when,age\n2020-01-31,1\n2021-02-01,2\n", r'values are dates, such as .2020-01-31.\. Turn .*--without when'),
        ("mark,age\n1,1\nabsent,2\n", r'"mark", row 2: .absent. among numbers\. .*--missing absent\..*--category mark'),
        ("empty,age\n,1\nNA,2\n", r'"empty": all 2 values are missing, .*Use other public rows, or leave it out'),
        ("outcome,age\nno,1\nyes,2\n", r'column "outcome": its values are exactly the classes\. .*--label outcome'),
        ("name,age\n" + "".join(f"person {i},1\n" for i in range(150)), '"name": 150 different texts in 150 rows'),
        ("a,b\n", "there is a header, but no rows"),
    ],
)  # fmt: skip
def test_a_draft_refuses_what_is_not_a_category_or_number(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        draft_schema(written(tmp_path, text), ("no", "yes"))


def test_arrays_have_a_schema_with_names_of_classes(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    np.savez(tmp_path / "site.npz", x=x, y=np.array(["yes", "no"] * 5))
    schema = draft_schema(tmp_path / "site.npz", ("no", "yes"))
    assert schema.inputs == Arrays(shape=(4,)) and schema.positive == "yes"
    data = read_data(tmp_path / "site.npz", schema)
    assert data.train_y.tolist() == [1, 0] * 4 and data.class_names == ("no", "yes") and data.schema == schema
    assert read_public(tmp_path / "site.npz", schema).shape == (10, 4)
    with pytest.raises(DataError, match=r"y, row 1: 'yes' is not one of the classes no, maybe"):
        read_data(tmp_path / "site.npz", schema.model_copy(update={"classes": ("no", "maybe"), "positive": None}))
    for read in (read_data, read_public):
        with pytest.raises(DataError, match=r"arrays of shape \(4,\); the schema describes table of shape"):
            read(tmp_path / "site.npz", SCHEMA)
    with pytest.raises(DataError, match=r"texts or objects .* draft a schema"):
        read_data(tmp_path / "site.npz")


def test_an_inspection_shows_the_columns_what_becomes_of_them_and_public_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "default,job,Salary,note\nno,clerk,5,\n" + "yes,pilot,6,x\n" * 5)
    shown = contents(path, SCHEMA)
    assert shown.title == f"{path}: 6 rows"
    assert shown.rows == [
        ["default", "categories", "0", "2", "yes, no", "the label"],
        ["job", "categories", "0", "2", "pilot, clerk", "2 categories and other (5 rows), missing: nurse"],
        ["Salary", "numbers", "0", "2", "5 to 6, median 6", "not in it: ignored"],
        ["note", "categories", "1", "1", "x", "not in it: ignored"],
        ["age", "-", "-", "-", "-", "the file lacks it: imputed"],
    ]
    public = written(tmp_path, "age,job\n99,clerk\n1,nurse\n", "public.csv")
    told = list(verdicts(path, SCHEMA, public))
    assert told[:2] == [
        f"fits the schema {SCHEMA.sha256[:12]}: 5 samples to train on, 1 to test on",
        "classes: no 1 (16.7%), yes 5 (83.3%)",
    ]
    assert told[-1] == f"1 of its rows are also in {public}, as far as its columns go, which every site can read", (
        "as this site sees the public set"
    )
