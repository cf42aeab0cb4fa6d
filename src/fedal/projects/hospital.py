"""`fedal init hospital`: three hospitals that see different patients and measure different things; which tumours are
malignant?

Breast cancer Wisconsin (diagnostic; Street, Wolberg and Mangasarian, 1993; UCI, CC BY 4.0), as it comes with
scikit-learn: 569 tumours, 30 measurements of cell nuclei, 37% malignant. Every fourth tumour, without its diagnosis, is
public. The measurements are real. Who sees whom, the columns that `south` lacks and the holes of `east` are made up.
"""

from __future__ import annotations

from pathlib import Path

from fedal.data.drafting import draft_schema
from fedal.projects.project import SITES, Project, Rows, write_table, write_texts
from fedal.projects.texts import COMPARISON, DEPLOY, TABLE_MODELS

LABEL, CLASSES = "diagnosis", ("benign", "malignant")
PATIENTS = {  # of five patients with a diagnosis, in the order of the file: where they go
    "malignant": ("north", "north", "north", "south", "east"),
    "benign": ("south", "south", "south", "north", "east"),
}
HOLES = 7  # of so many values of `east`, one was never measured

FEDERATION = """
# Three hospitals with different patients. Nothing but outputs on public.csv leaves a hospital.
method = "fedal"
iterations = 200
public = "public.csv"            # tumours without their diagnosis, which all hospitals may see
schema_file = "schema.json"      # made by: fedal schema public.csv --label diagnosis --classes benign,malignant
metrics = ["brier", "calibration_error", "roc_auc", "balanced_accuracy"]

[[clients]]
name = "north"                   # a cancer centre: most of its tumours are malignant
data = "north.csv"
model = "my_models:net"

[[clients]]
name = "south"                   # screening: few are malignant; it measures 10 of the 30 columns
data = "south.csv"
model = "logistic"

[[clients]]
name = "east"                    # a small hospital, with missing values
data = "east.csv"
model = "my_models:trees"
"""

README = """
# Three hospitals

Which tumours are malignant? A cancer centre (`north`), a screening clinic with a third of the columns (`south`) and a
small hospital with missing values (`east`) train together without sharing patients or models: a neural network,
logistic regression and boosted trees. Only outputs on `public.csv` leave a hospital.

Data: {origin}.

    fedal run                                                  # a few minutes at most; the last lines say who gained
    fedal data inspect south.csv --schema-file schema.json --public public.csv

`federation.toml` is the whole setup: method, data, models, and the comparison with local-only training. Other methods
are in `fedal methods`, other settings in `fedal settings`. `my_models.py` holds the hospitals' own models. The metric
is the Brier score, the mean squared error of the predicted probabilities: lower is better.
"""


def _write(folder: Path) -> str:
    _write_tables(folder)
    origin = "569 breast tumours (Wisconsin, UCI, CC BY 4.0; from scikit-learn)"
    words = {"name": "hospital", "data": "north.csv", "model": "my_models:net"}
    write_texts(
        folder,
        federation=FEDERATION + COMPARISON.format(name="hospital"),
        models=TABLE_MODELS,
        readme=README.format(origin=origin) + DEPLOY.format(**words),
    )
    return origin


def _write_tables(folder: Path) -> None:
    """Writes public.csv, one file per hospital, and the schema."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = [str(name).replace(" ", "_") for name in found.feature_names]
    rows = [[f"{value:g}" for value in row] for row in found.data]
    diagnoses = [str(found.target_names[code]) for code in found.target]
    write_table(folder / "public.csv", columns, rows[::4])
    draft_schema(folder / "public.csv", CLASSES, label=LABEL).save(folder / "schema.json")
    patients: dict[str, Rows] = {site: [] for site in SITES}
    seen = dict.fromkeys(CLASSES, 0)
    for i, (row, diagnosis) in enumerate(zip(rows, diagnoses, strict=True)):
        if i % 4:
            places = PATIENTS[diagnosis]
            patients[places[seen[diagnosis] % len(places)]].append([*row, diagnosis])
            seen[diagnosis] += 1
    patients["east"] = [_with_holes(row, number) for number, row in enumerate(patients["east"])]
    for site, own in patients.items():
        keep = [k for k, name in enumerate(columns) if site != "south" or name.startswith("mean_")]
        table = [[*(row[k] for k in keep), row[-1]] for row in own]
        write_table(folder / f"{site}.csv", [*(columns[k] for k in keep), LABEL], table)


def _with_holes(row: list[str], number: int) -> list[str]:
    """A row without every seventh value, counted through the whole table; its diagnosis is kept."""
    *values, diagnosis = row
    first = number * len(values)
    return [*("" if (first + k) % HOLES == 0 else value for k, value in enumerate(values)), diagnosis]


HOSPITAL = Project("three hospitals with unlike columns and missing values; probabilities to rely on", _write)
