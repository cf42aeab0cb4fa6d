"""`fedal schema` and `fedal data inspect`, as a person types them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import fedal
from fedal.data.schema import load_schema
from site_tables import write_sites


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path)
    (tmp_path / "schema.json").unlink()
    return tmp_path


def test_a_schema_is_drafted_shown_and_never_replaced(here: Path) -> None:
    answer = fedal("schema", "public.csv", "--label", "default", "--classes", "no,yes", "--without", "income")
    found = load_schema("schema.json")
    assert answer.code == 0 and found.table.names == ("age", "job") and found.positive == "yes"
    assert "2 columns, 5 encoded" in answer.out and "clerk, nurse, pilot, other; a missing value becomes" in answer.out
    assert "classes: no, yes, in the column 'default' of each site; positive: yes" in answer.out
    assert answer.out.splitlines()[-1] == f"schema: schema.json, sha256 {found.sha256}"
    again = fedal("schema", "public.csv", "--classes", "a,b")
    assert again.code == 2 and "schema.json exists already, and sites may depend on it" in again.err
    assert load_schema("schema.json") == found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("public.csv", "--classes", "no"), "classes: .*at least 2"),
        (("public.csv", "--classes", "a,b", "--positive", "c"), "positive = 'c' is not one of the classes a, b"),
        (("public.csv", "--classes", "a,b", "--size", "8"), "not a folder of images; leave out --size"),
        (("public.csv", "--classes", "a,b", "--size", "8by8"), "--size 8by8: expected pixels, such as 32"),
        (("public.csv", "--classes", "a,b", "--channels", "2"), "--channels 2: expected 1 .grey. or 3"),
        (("public.csv", "--classes", "a,b", "--without", "Age"), 'there is no column "Age". Did you mean "age"'),
        (("nothing.csv", "--classes", "a,b"), "nothing.csv: the file does not exist"),
        (("pets", "--classes", "a,b", "--without", "x"), "images have no named columns"),
    ],
)
def test_a_mistake_in_a_draft_writes_nothing(here: Path, words: tuple[str, ...], told: str) -> None:
    import re

    (here / "pets").mkdir()
    answer = fedal("schema", *words)
    assert answer.code == 2 and re.search(told, answer.err) and not (here / "schema.json").exists()


def test_a_column_that_looks_like_an_identifier_is_pointed_out(here: Path) -> None:
    rows = "".join(f"{100 + i},{i % 7},{i / 3}\n" for i in range(30))
    (here / "ids.csv").write_text("customer,visits,weight\n" + rows)
    answer = fedal("schema", "ids.csv", "--classes", "a,b")
    assert answer.code == 0 and answer.err.count("warning") == 1
    assert 'column "customer": no value occurs twice' in answer.err and "--without customer" in answer.err


def test_an_inspection_shows_the_file_even_if_it_does_not_fit(here: Path) -> None:
    fedal("schema", "public.csv", "--label", "default", "--classes", "no,yes")
    plain = fedal("data", "inspect", "south.csv")
    assert plain.code == 0 and "south.csv: 25 rows" in plain.out and "in the schema" not in plain.out
    fits = fedal("data", "inspect", "south.csv", "--schema-file", "schema.json", "--public", "public.csv")
    assert fits.code == 0 and "the file lacks it: imputed" in fits.out and "fits the schema" in fits.out
    assert "of its rows are also in public.csv, as far as its columns go, which every site can read" in fits.out
    north = fedal("data", "inspect", "north.csv", "--schema-file", "schema.json", "--public", "public.csv")
    assert north.out.endswith("\n0 of its rows are also in public.csv\n")
    text = (here / "south.csv").read_text().replace("yes", "maybe", 1)
    (here / "south.csv").write_text(text)
    refused = fedal("data", "inspect", "south.csv", "--schema-file", "schema.json")
    assert (
        refused.code == 2 and "south.csv: 25 rows" in refused.out and "'maybe' is not one of the classes" in refused.err
    )
    assert "--public needs --schema-file" in fedal("data", "inspect", "south.csv", "--public", "public.csv").err


def test_arrays_and_folders_of_images_can_be_inspected(here: Path) -> None:
    np.savez(here / "a.npz", x=np.zeros((10, 3), np.float32), y=np.array(["no", "yes"] * 5))
    answer = fedal("data", "inspect", "a.npz")
    assert answer.code == 0 and "(10, 3)" in answer.out and "<U3" in answer.out
    for name in ("cat", "dog"):
        (here / "pets" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (4, 4), i).save(here / "pets" / name / f"{i}.png")
    drafted = fedal("schema", "pets", "--classes", "cat,dog")
    assert drafted.code == 0 and "images of shape (1, 4, 4)" in drafted.out
    answer = fedal("data", "inspect", "pets", "--schema-file", "schema.json", "--public", "pets")
    assert answer.code == 0 and "classes: cat 5 (50.0%), dog 5 (50.0%)" in answer.out
    assert "10 of its rows are also in pets, which every site can read" in answer.out
