"""`fedal init blank`: three small made-up tables, to be replaced by your own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedal.data.drafting import draft_schema
from fedal.projects.project import SITES, Project, write_texts
from fedal.projects.texts import COMPARISON, DEPLOY, TABLE_MODELS

CLASSES = ("no", "yes")

FEDERATION = """
# Nothing but outputs on public.csv leaves a site. `fedal settings` lists all settings, `fedal methods` all methods.
method = "fedal"
iterations = 100
public = "public.csv"            # rows without labels, which all sites may see
schema_file = "schema.json"      # made by: fedal schema public.csv --classes no,yes

[[clients]]
name = "north"
data = "north.csv"
model = "my_models:net"

[[clients]]
name = "south"
data = "south.csv"
model = "logistic"

[[clients]]
name = "east"
data = "east.csv"
model = "my_models:trees"
"""

README = """
# A federation of your own

Three sites train together without sharing data or models: only outputs on `public.csv` leave a site. The tables are
{origin}: replace them.

1. Put public rows, without labels, into `public.csv`, and each site's rows into `north.csv`, `south.csv` and
   `east.csv`, with a column `label`. Parquet files will do too (`pip install 'fedal[parquet]'`).
2. Remove `schema.json`, and draft a new one: `fedal schema public.csv --classes no,yes`.
3. `fedal data inspect north.csv --schema-file schema.json --public public.csv` says whether a site's file fits.
4. Change the models in `my_models.py` and the sites in `federation.toml`.
5. `fedal run`. The last lines say which site gained against local-only training, and which did not.
"""


def _write(folder: Path) -> str:
    rng = np.random.default_rng(0)
    for seed, name in enumerate(("public", *SITES)):
        x = rng.normal(0.3 * (seed - 2), 1.0, (120, 3))
        y = x @ np.array([1.0, -1.0, 0.5]) + rng.normal(0, 0.5, len(x)) > 0
        lines = ["a,b,c" + ",label" * (name != "public")]
        lines += [
            ",".join([*(f"{value:.3f}" for value in row), *([CLASSES[int(yes)]] if name != "public" else [])])
            for row, yes in zip(x, y, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft_schema(folder / "public.csv", CLASSES).save(folder / "schema.json")
    origin = "made-up numbers"
    write_texts(
        folder,
        federation=FEDERATION + COMPARISON.format(name="own"),
        models=TABLE_MODELS,
        readme=README.format(origin=origin) + DEPLOY.format(name="own", data="north.csv", model="my_models:net"),
    )
    return origin


BLANK = Project("three small tables to replace by your own", _write)
