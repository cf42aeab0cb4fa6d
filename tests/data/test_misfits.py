"""Files that do not fit: each is refused with column, row, value and advice, or accepted as docs/data.md says."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedal.data import npz, reading
from fedal.data.drafting import draft_schema
from fedal.data.reading import read_data, read_public
from fedal.data.schema import Category, Images, Number, Schema, Table
from fedal.data.tables import encoding, values
from fedal.errors import DataError
from optional import needs

AGE = Number(name="age", mean=40.0, scale=10.0, missing=35.0)
JOB = Category(name="job", categories=("clerk", "nurse"), missing="nurse")
SCHEMA = Schema(inputs=Table(columns=(AGE, JOB), missing_marks=values.MISSING_MARKS), classes=("no", "yes"))
PICTURES = Schema(
    inputs=Images(height=4, width=4, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3), classes=("cat", "dog")
)
GOOD = "age,job,label\n" + "30,clerk,no\n40,nurse,yes\n" * 5
ONE_BAD = "age,job,label\n30,clerk,no\n{}\n" + "40,nurse,yes\n" * 5


def text(folder: Path, content: str | bytes, name: str = "site.csv") -> Path:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def table(name: str, content: str | bytes) -> Callable[[Path], Path]:
    return lambda folder: text(folder, content, name)


REFUSED_TABLES: dict[str, tuple[str | bytes, str]] = {
    "wrong column": (GOOD.replace("age", "Age"), r'column "Age": the schema has no such column, but it has "age"\.'),
    "no column fits": ("x,y,label\n1,2,no\n", 'none of its columns is in the schema. It has "x", "y", "label"'),
    "no label": (GOOD.replace("label", "Label"), r'no column "label", the label of the schema\. Is it "Label"\?'),
    "text in a number column": (ONE_BAD.format("old,clerk,no"), 'column "age", row 2: \'old\' is not a finite number'),
    "decimal comma": (GOOD.replace(",", ";").replace("40", "40,5"), r"row 2: '40,5' is not .*\. Write '40\.5'"),
    "infinite": (ONE_BAD.format("1e999,clerk,no"), r'column "age", row 2: .* is not finite'),
    "underscores": (ONE_BAD.format("1_000,clerk,no"), "row 2: '1_000' is not a finite number"),
    "date in a number column": (ONE_BAD.format("2020-01-31,clerk,no"), r'row 2: .2020-01-31. is not .* like a date\.'),
    "new class": (ONE_BAD.format("30,clerk,maybe"), r'"label", row 2: .maybe. is not one of the classes no, yes'),
    "missing label": (ONE_BAD.format("30,clerk,NaN"), r'"label", row 2: .NaN. is a missing label\. Remove the row'),
    "empty": ("", "the file is empty; expected a header line"),
    "header only": ("age,job,label\n", "there are no rows"),
    "duplicate header": (GOOD.replace("job", "age"), r'"age" occurs 2 times \(columns 1, 2\)\. Give each a name'),
    "column without a name": ("," + GOOD, r"column 1 has no name\. .*index=False"),
    "one column": ("age job label\n1 2 no\n", "one column only"),
    "ragged": (ONE_BAD.format("30,clerk"), r'row 2: 2 fields, the last .clerk.; expected 3, the last for .*"label"'),
    "open quote": (ONE_BAD.format('30,"clerk,no'), "row 1: unexpected end of data. Is a double quote left open"),
    "UTF-16": (GOOD.encode("utf-16"), "the text is UTF-16. Save it as UTF-8"),
    "wrong encoding": (ONE_BAD.format("30,côté,no").encode("latin-1"), r"row 2: not UTF-8 text: byte 0xf4 .*iconv"),
    "spreadsheet": (b"PK\x03\x04 a workbook", "a zip archive, perhaps an Excel file"),
    "too few rows": ("age,job,label\n1,clerk,no\n", "no class has 5 rows, so none can be held out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TABLES)
def test_a_table_that_does_not_fit_is_refused_with_its_place_and_advice(tmp_path: Path, case: str) -> None:
    content, told = REFUSED_TABLES[case]
    path = text(tmp_path, content)
    with pytest.raises(DataError, match=told) as refused:
        read_data(path, SCHEMA)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [path], "nothing is written"


@pytest.mark.parametrize(
    ("content", "noted"),
    [
        (ONE_BAD.format("30,pilot,no"), "1 value of no category of the schema"),
        ("\ufeff" + GOOD, None),
        (GOOD.replace(",", ";"), None),
        (GOOD.replace("yes", "no"), "no row is of class yes"),
        (GOOD.replace(",label", ",label,more").replace("no\n", "no,1\n").replace("yes\n", "yes,1\n"), "and ignored"),
        (GOOD.replace("\n", "\n\n"), None),
    ],
    ids=["unknown category", "byte order mark", "semicolons", "one class only", "more columns", "empty lines"],
)
def test_what_is_accepted_is_said(tmp_path: Path, content: str, noted: str | None) -> None:
    notes = read_data(text(tmp_path, content), SCHEMA).notes
    assert notes == () if noted is None else (len(notes) == 1 and noted in notes[0])


def test_a_column_of_mixed_types_is_refused() -> None:
    pd = needs("pandas", "pandas")
    frame = pd.DataFrame({"age": [1.0] * 5, "job": ["clerk", 7] + ["clerk"] * 3, "label": ["no"] * 5})
    with pytest.raises(DataError, match=r'column "job", row 2: 7 is of type int; expected only numbers or only texts'):
        read_data(frame, SCHEMA)


def test_dates_of_a_frame_or_parquet_file_are_refused(tmp_path: Path) -> None:
    from datetime import date

    pd, pa = needs("pandas", "pandas"), needs("pyarrow", "parquet")
    days = [date(2020, 1, 31), date(2020, 2, 1)] * 3
    for ages in (days, pd.to_datetime(days)):
        frame = pd.DataFrame({"age": ages, "job": ["clerk"] * 6, "label": ["no"] * 6})
        with pytest.raises(DataError, match=r'column "age".*Turn dates into numbers'):
            read_data(frame, SCHEMA)
    pq = needs("pyarrow.parquet", "parquet")
    pq.write_table(pa.table({"age": days, "label": ["no"] * 6, "job": [["a"]] * 6}), tmp_path / "site.parquet")
    with pytest.raises(DataError, match=r'column "age": the values are of type date32\[day\]\. Turn dates'):
        read_data(tmp_path / "site.parquet", SCHEMA)
    with pytest.raises(DataError, match=r'column "job": the values are of type list.*; expected numbers or texts'):
        draft_schema(tmp_path / "site.parquet", ("no", "yes"), without=["age"])


def test_a_table_larger_than_the_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = text(tmp_path, GOOD)
    monkeypatch.setattr(encoding, "total_memory", lambda: 100)
    for read in (read_data, read_public):
        with pytest.raises(DataError, match=r"too large: 10 rows of 4 encoded columns need .* GB; this machine has"):
            read(path, SCHEMA)


def test_a_parquet_file_that_is_none_or_broken_is_refused(tmp_path: Path) -> None:
    pa, pq = needs("pyarrow", "parquet"), needs("pyarrow.parquet", "parquet")
    with pytest.raises(DataError, match=r"site\.parquet: not an intact Parquet file \(.*\)\. Write it again"):
        read_data(text(tmp_path, GOOD, "site.parquet"), SCHEMA)
    pq.write_table(pa.table({"age": np.arange(1e4), "job": ["clerk"] * 10_000, "label": ["no"] * 10_000}),
                   tmp_path / "broken.parquet")  # fmt: skip
    content = bytearray((tmp_path / "broken.parquet").read_bytes())
    content[100:400] = bytes(300)
    (tmp_path / "broken.parquet").write_bytes(content)
    with pytest.raises(DataError, match="not an intact Parquet file"):
        read_data(tmp_path / "broken.parquet", SCHEMA)


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow\. Type: pip install 'fedal\[parquet\]'"):
        read_data(text(tmp_path, b"PAR1", "site.parquet"), SCHEMA)
    assert len(read_data(text(tmp_path, GOOD), SCHEMA).train_y) == 8, "CSV needs no extra"


def test_a_pipe_or_an_unknown_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "site.csv")
    with pytest.raises(DataError, match="a pipe, socket or device; expected a file"):
        read_data(tmp_path / "site.csv", SCHEMA)
    with pytest.raises(DataError, match=r"unknown kind of file '\.xlsx'; expected \.csv"):
        read_data(text(tmp_path, "x", "site.xlsx"), SCHEMA)
    with pytest.raises(DataError, match="the file does not exist"):
        read_data(tmp_path / "nothing.csv", SCHEMA)
    with pytest.raises(DataError, match=r"needs a schema, .*fedal schema PUBLIC"):
        read_data(text(tmp_path, GOOD, "good.csv"))
    with pytest.raises(DataError, match=r"the DataFrame: needs a schema, .*draft_schema\(public, .*schema_file="):
        read_data(needs("pandas", "pandas").DataFrame({"age": [1.0], "label": ["no"]}))
    with pytest.raises(DataError, match="a table; the schema describes images"):
        read_data(tmp_path / "good.csv", PICTURES)
    with pytest.raises(DataError, match="data: a list; expected a path, a Dataset or a DataFrame"):
        read_data([1, 2], SCHEMA)


def test_python_objects_in_an_npz_file_are_refused_without_words_that_frighten(tmp_path: Path) -> None:
    np.savez(tmp_path / "site.npz", x=np.array([{}, []], object), y=[0, 1])
    with pytest.raises(DataError, match="holds Python objects, which are not read because reading them can run code"):
        reading.read_data(tmp_path / "site.npz")


# --- images -------------------------------------------------------------------------------------------------------


def pictures(folder: Path, mode: str = "RGB", size: tuple[int, int] = (4, 4), n: int = 6) -> Path:
    for name, value in (("cat", 10), ("dog", 200)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            colour = value + i if mode == "L" else (value + i, 0, 255)
            Image.new(mode, size, colour).save(folder / name / f"{i}.png")
    (folder / "cat" / ".hidden.png").write_bytes(b"ignored")
    (folder / "cat" / "Thumbs.db").write_bytes(b"ignored")
    return folder


def test_a_folder_of_images_per_class_is_read_in_order_and_scaled_by_the_schema(tmp_path: Path) -> None:
    data = read_data(pictures(tmp_path / "pets"), PICTURES)
    assert data.train_x.shape == (10, 3, 4, 4) and data.train_y.tolist() == [0] * 5 + [1] * 5
    assert data.test_y.tolist() == [0, 1] and data.class_names == ("cat", "dog") and data.notes == ()
    red = (np.array([10, 11, 12, 13, 15, 200, 201, 202, 203, 205]) / 255 - 0.5) / 0.25
    assert np.allclose(data.train_x[:, 0, 0, 0], red, atol=1e-6)
    assert np.allclose(data.train_x[:, 1], -2) and np.allclose(data.train_x[:, 2], 2)
    assert len(read_public(tmp_path / "pets", PICTURES)) == 12


def test_images_of_another_size_are_resized_and_grey_ones_get_three_channels(tmp_path: Path) -> None:
    data = read_data(pictures(tmp_path / "pets", "L", (8, 6)), PICTURES)
    assert data.notes == (f"{tmp_path / 'pets'}: 12 images cropped and resized to 4x4 pixels",)
    assert (data.train_x[:, 0] == data.train_x[:, 2]).all()


def test_a_draft_of_images_has_their_size_channels_and_statistics(tmp_path: Path) -> None:
    drafted = draft_schema(pictures(tmp_path / "pets", "L", (6, 8)), ("cat", "dog"))
    inputs = drafted.inputs
    assert isinstance(inputs, Images) and drafted.sample_shape == (1, 8, 6) and drafted.positive == "dog"
    grey = np.concatenate([np.arange(10, 16), np.arange(200, 206)]) / 255
    assert inputs.mean == pytest.approx([grey.mean()]) and inputs.std == pytest.approx([grey.std()])
    assert draft_schema(tmp_path / "pets", ("cat", "dog"), size=(5, 7), channels=3).sample_shape == (3, 5, 7)


def test_images_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    grey = PICTURES.model_copy(update={"inputs": Images(height=4, width=4, channels=1, mean=(0.0,), std=(1.0,))})
    pets = pictures(tmp_path / "pets")
    with pytest.raises(DataError, match=r"cat/0\.png: a colour image; this federation's images are grey"):
        read_data(pets, grey)
    Image.new("L", (4, 4)).save(pets / "dog" / "a.png")
    with pytest.raises(DataError, match=r"dog/a\.png: grey; .*cat/0\.png is colour\. Choose: --channels 3"):
        draft_schema(pets, ("cat", "dog"))
    Image.new("L", (9, 4)).save(pets / "dog" / "a.png")
    with pytest.raises(DataError, match=r"dog/a\.png: 9x4 pixels; .*cat/0\.png has 4x4\. .*--size 32"):
        draft_schema(pets, ("cat", "dog"))
    (pets / "bird").mkdir()
    with pytest.raises(DataError, match=r"the folder 'bird' is not one of the classes cat, dog"):
        read_data(pets, PICTURES)
    with pytest.raises(DataError, match="no images"):
        read_public(pets / "bird", PICTURES)
    with pytest.raises(DataError, match="a folder of images; the schema describes table"):
        read_data(pets, SCHEMA)


def _huge_png() -> bytes:
    """A PNG of 70 bytes that claims 2 thousand million pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 50_000, 40_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_damaged_huge_or_transparent_image_is_refused_by_name(tmp_path: Path) -> None:
    pets = pictures(tmp_path / "pets")
    bad = pets / "dog" / "a.png"
    jpeg = pets / "dog" / "b.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(jpeg)
    jpeg.write_bytes(jpeg.read_bytes()[:900])
    with pytest.raises(DataError, match=r"dog/b\.jpg: not an intact image .*Replace or remove it"):
        read_data(pets, PICTURES)
    for content in (b"", b"GIF89a", _huge_png()):
        bad.write_bytes(content)
        with pytest.raises(DataError, match=r"dog/a\.png: (not an intact image|50,000x40,000 pixels)"):
            read_data(pets, PICTURES)
    Image.new("RGBA", (4, 4)).save(bad)
    with pytest.raises(DataError, match=r"dog/a\.png: image mode RGBA; expected grey or colour"):
        read_data(pets, PICTURES)


# --- arrays -------------------------------------------------------------------------------------------------------


def test_arrays_that_do_not_fit_are_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.npz"
    np.savez(path, x=np.zeros((20, 8, 8, 3), np.float32), y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"shape \(20, 8, 8, 3\) looks like \(n, H, W, C\).*transpose\(0, 3, 1, 2\)"):
        read_data(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="a pipe, socket or device; expected a file"):
        read_data(path)
    path.unlink()
    path.write_bytes(b"x,y\n1,2\n")
    with pytest.raises(DataError, match="not a zip archive"):
        read_data(path)
    path.unlink()
    np.savez_compressed(path, x=np.zeros((1000, 1000)), y=np.arange(1000) % 2)  # 8 MB of zeros in 10 kB
    monkeypatch.setattr(npz, "total_memory", lambda: 1_000_000)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"its arrays take \d+ GB; this machine has"):
        read_data(path)


def test_a_parquet_file_that_claims_too_many_rows_is_refused_before_its_labels_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, pq = needs("pyarrow", "parquet"), needs("pyarrow.parquet", "parquet")
    columns = {"age": np.zeros(100_000), "job": ["clerk"] * 100_000, "label": ["no"] * 100_000}
    pq.write_table(pa.table(columns), tmp_path / "site.parquet")
    monkeypatch.setattr(encoding, "total_memory", lambda: 1_000_000)
    monkeypatch.setattr(reading, "read_labels", lambda *_: pytest.fail("the labels were read"))
    with pytest.raises(DataError, match="too large: 100,000 rows of 4 encoded columns"):
        read_data(tmp_path / "site.parquet", SCHEMA)
