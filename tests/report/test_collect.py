"""Run folders as data: intact, half-written, damaged and hostile ones."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from run_folders import write_comparison, write_run

from commands import fedal
from fedal.errors import ConfigError
from fedal.report.collect import collect
from fedal.report.groups import Overview, overview


def read(*folders: Path) -> Overview:
    return overview(collect(folders))


def problems_of(found: Overview) -> str:
    return "\n".join(found.problems)


def test_a_run_a_comparison_and_a_folder_of_both_can_be_read(tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path / "all" / "cmp")
    assert len(read(comparison / "fedal" / "seed-0").records) == 1
    assert len(read(comparison).records) == 6
    assert len(read(tmp_path / "all").records) == 6


def test_runs_that_differ_only_in_the_seed_are_one_group(tmp_path: Path) -> None:
    found = read(write_comparison(tmp_path / "cmp"))
    assert [(group.label, len(group.records)) for group in found.groups] == [("fedal", 3), ("fedmd", 3)]
    assert found.problems == []
    assert found.groups[1].mean("test_accuracy") == pytest.approx(0.61)
    assert found.groups[1].spread("test_accuracy") == pytest.approx(0.01)


def test_methods_keep_the_order_of_the_comparison(tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path / "cmp")
    (comparison / "table.csv").write_text("method,not_applicable\nfedmd,\nfedavg,unlike models\nfedal,\n")
    found = read(comparison)
    assert [group.label for group in found.groups] == ["fedmd", "fedal"]
    assert found.not_applicable == {"fedavg": "unlike models"}


def test_groups_of_one_method_are_labelled_by_their_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config={"alpha": 1.0})
    write_run(tmp_path / "b", config={"alpha": 5.0})
    found = read(tmp_path / "a", tmp_path / "b")
    assert [group.label for group in found.groups] == ["fedmd, alpha 1.0", "fedmd, alpha 5.0"]
    assert "Groups differ in alpha" in problems_of(found)


def test_what_defines_a_method_is_no_difference_of_settings(tmp_path: Path) -> None:
    """FedEven is FedMD with tau 1. A tau that the user chose is a difference."""
    write_run(tmp_path / "a", config={"method": "fedmd", "options": {"tau": 5}})
    write_run(tmp_path / "b", config={"method": "fedeven", "options": {"tau": 1}})
    write_run(tmp_path / "c", config={"method": "fedeven", "options": {"tau": 2}})
    assert read(tmp_path / "a", tmp_path / "b").problems == []
    assert "Groups differ in tau: 5 in fedmd; 2 in fedeven." in problems_of(read(tmp_path / "a", tmp_path / "c"))


def test_a_duplicate_run_is_shown_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", complete=False)
    write_run(tmp_path / "b")
    found = read(tmp_path / "a", tmp_path / "b")
    assert [record.name for record in found.records] == ["b"]
    assert "a has the same settings and seed as b" in problems_of(found)


def test_a_curve_has_the_mean_and_the_range_of_the_seeds_at_every_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path / "c" / "seed-0", seed=0, accuracies=(0.2, 0.4))
    write_run(tmp_path / "c" / "seed-1", seed=1, accuracies=(0.4,), complete=False, config={"iterations": 20})
    curve = read(tmp_path / "c").groups[0].curve("test_accuracy")
    assert [point[0] for point in curve] == [10, 20]
    assert curve[0][3:] == pytest.approx((0.3, 0.2, 0.4, 2))
    assert curve[1][3:] == pytest.approx((0.4, 0.4, 0.4, 1))


def test_the_gain_from_the_transfer_is_the_difference_of_the_phases(tmp_path: Path) -> None:
    curve = read(write_run(tmp_path / "a")).groups[0].curve("transfer_gain")
    assert [point[3] for point in curve] == pytest.approx([0.1] * 3)


def test_an_empty_folder_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run in this folder or below it.*fedal run"):
        collect([tmp_path])
    with pytest.raises(ConfigError, match="no such folder"):
        collect([tmp_path / "missing"])


def test_an_empty_folder_next_to_a_good_one_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = read(tmp_path / "empty", write_run(tmp_path / "a"))
    assert len(found.records) == 1
    assert "no run in this folder" in problems_of(found)


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "metrics.jsonl", "clients.jsonl", "partition.npz"])
def test_a_missing_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "fedmd" / "seed-4", seed=4)
    (path / name).unlink()
    found = read(path)
    assert f"{name} is missing" in problems_of(found)
    assert (found.records[0].method, found.records[0].seed) == ("fedmd", 4)


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "metrics.jsonl", "clients.jsonl", "partition.npz"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00\x1b[31m{", b"[" * 100_000, b"[1, 2]\n", b"PK\x03\x04 no archive"], ids=range(5)
)
def test_a_damaged_file_never_stops_the_report(tmp_path: Path, name: str, content: bytes) -> None:
    path = write_run(tmp_path / "a")
    (path / name).write_bytes(content)
    found = read(path)
    assert len(found.records) == 1
    assert "\x1b" not in problems_of(found)


def test_a_pickle_in_the_partition_is_not_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = write_run(tmp_path / "a")
    np.savez(path / "partition.npz", class_counts=np.array([[Bomb()]], dtype=object))
    assert "partition.npz cannot be read" in problems_of(read(path))
    assert not (tmp_path / "exploded").exists()


def test_a_partition_without_leftovers_or_with_a_strange_one_is_read(tmp_path: Path) -> None:
    counts = np.array([[3, -1], [0, 0], [2, 2]])
    clients = {f"client/{name}": np.arange(3) for name in ("a", "b", "c")}
    for place, more in enumerate(({}, {"leftovers": np.zeros(5)}, {"leftovers": np.array("many")})):
        path = write_run(tmp_path / str(place))
        np.savez(path / "partition.npz", class_counts=counts, **more, **clients)
        (record,) = read(path).records
        assert record.unassigned is None and record.effective_classes == pytest.approx(1.5)


def test_a_leftover_array_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    large = np.zeros(2_000_000, dtype=np.int64)  # a few kB in the file
    np.savez_compressed(path / "partition.npz", class_counts=np.eye(1, dtype=int), leftovers=large)
    assert "table too large" in problems_of(read(path))


def test_a_torn_last_line_is_skipped_and_reported(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", complete=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"round": 8, "itera')
    found = read(path)
    assert "metrics.jsonl: skipped line 7, which cannot be read" in problems_of(found)
    assert "not complete: recorded up to iteration 30 of 30" in problems_of(found)
    assert len(found.records[0].rows) == 6


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", '"much"', "1" + 400 * "0"])
def test_a_non_finite_value_is_kept_and_flagged(tmp_path: Path, value: str) -> None:
    path = write_run(tmp_path / "a")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    lines[-1] = lines[-1].replace('"test_accuracy": 0.6', f'"test_accuracy": {value}')
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = read(path)
    assert math.isnan(found.groups[0].mean("test_accuracy"))
    assert "test_accuracy is not a number (NaN) in 1 of 7 rows, first at iteration 30" in problems_of(found)
    assert found.best is None


def test_code_named_in_a_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    path = write_run(tmp_path / "a", method="evil:METHOD", config={"models": "evil:net"})
    assert read(path).groups[0].label == "evil:METHOD"
    assert fedal("report", path).code == 0


def test_a_failed_run_is_reported_with_its_reason(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", complete=False)
    (path / "failure.json").write_text(json.dumps({"error": "RunError: the disk is full"}))
    assert "the run failed: RunError: the disk is full" in problems_of(read(path))


def test_the_command_reports_missing_files_and_writes_the_rest(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", complete=False)
    (path / "partition.npz").unlink()
    answer = fedal("report", path)
    assert answer.code == 0
    assert "partition.npz is missing" in answer.err
    assert answer.out == f"report: {path / 'report.html'}\n"
    assert (path / "report.html").exists()


def test_the_command_refuses_an_empty_folder_and_writes_nothing(tmp_path: Path) -> None:
    answer = fedal("report", tmp_path)
    assert answer.code == 2
    assert "no run in this folder or below it" in answer.err
    assert list(tmp_path.iterdir()) == []
