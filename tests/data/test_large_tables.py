"""A large Parquet file is read straight into the arrays of a federation: peak memory and time, against pyarrow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from optional import needs

ROWS, COLUMNS = 1_000_000, 50  # the label is one of them

READ = """
import json, re, sys, time
import pyarrow, pyarrow.parquet
from fedal.config import Config
from fedal.data.tables import arrow
from fedal.data.reading import read_data
from fedal.data.schema import load_schema
from fedal.simulate.assemble import _Staged
from fedal.simulate.prepare import prepare_split

def peak_memory():  # of this program: getrusage also counts the process that started it
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])

path, schema = sys.argv[1], load_schema(sys.argv[2])
pyarrow.array([1]).cast(pyarrow.int8())  # imports what pyarrow imports at its first use
before = peak_memory()
data = read_data(path, schema)
config = Config(dataset="digits", clients=2, data_in_python=True, partition="iid")
staged = _Staged(config, prepare_split(config, data))
peak = peak_memory() - before
del staged, data
times = {"ours": [], "pyarrow": []}
for _ in range(3):
    start = time.perf_counter()
    data = read_data(path, schema)
    times["ours"].append(time.perf_counter() - start)
    del data
    start = time.perf_counter()
    table = pyarrow.parquet.read_table(path)
    times["pyarrow"].append(time.perf_counter() - start)
    del table
print(json.dumps({"peak": peak, **times}))
"""


@pytest.mark.soak
@pytest.mark.processes
def test_a_million_rows_take_little_more_memory_than_their_array(tmp_path: Path) -> None:
    pa, pq = needs("pyarrow", "parquet"), needs("pyarrow.parquet", "parquet")
    from fedal.data.schema import Number, Schema, Table

    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.standard_normal(ROWS) for i in range(COLUMNS - 1)}
    pq.write_table(pa.table({**columns, "label": rng.choice(["no", "yes"], ROWS)}), tmp_path / "large.parquet")
    numbers = tuple(Number(name=name, mean=0.0, scale=2.0, missing=0.0) for name in columns)
    schema = Schema(inputs=Table(columns=numbers, missing_marks=()), classes=("no", "yes"))
    schema.save(tmp_path / "schema.json")
    command = [sys.executable, "-c", READ, str(tmp_path / "large.parquet"), str(tmp_path / "schema.json")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(shown.stdout)
    encoded = 4 * ROWS * schema.table.width
    ratio = float(np.median(found["ours"]) / np.median(found["pyarrow"]))
    print(f"peak {found['peak'] / encoded:.2f} times the array; {ratio:.1f} times the time of pyarrow: {found}")
    assert found["peak"] <= 1.5 * encoded
    assert ratio <= 4
