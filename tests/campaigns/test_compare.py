"""Comparisons: the table, the plot, resuming an interrupted comparison, and refusing runs with other settings."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedal
from commands import COMMAND, Answer
from commands import fedal as command
from e2e.lives import outcome
from fedal.campaigns.compare import compare
from fedal.campaigns.comparison import Comparison, MethodRuns
from fedal.errors import ConfigError
from fedal.figures.curves import plot_curves

SETTINGS: dict[str, Any] = dict(
    clients=3, models=["mlp-small"], iterations=6, tau=2, batch_size=8, eval_every=2, eval_samples=50
)
WORDS = (
    "--clients", "3", "--set", 'models=["mlp-small"]', "--iterations", "6", "--set", "tau=2", "--set", "batch_size=8",
    "--set", "eval_every=2", "--set", "eval_samples=50",
)  # fmt: skip


def command_compare(*words: object) -> Answer:
    return command("compare", "--seeds", 2, *WORDS, *words)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    path = tmp_path_factory.mktemp("compare") / "cmp"
    return path, command_compare("--methods", "local,fedal", "--out", path, "--jobs", 1)


def test_the_table_is_printed_and_written_with_mean_and_std(shown: tuple[Path, Answer]) -> None:
    path, answer = shown
    assert answer.code == 0, answer.err
    with open(path / "table.csv") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["local", "fedal"]
    for method, row in rows.items():
        finals = [fedal.load_run(path / method / f"seed-{seed}").final for seed in (0, 1)]
        accuracies = [final["test_accuracy"] for final in finals]
        assert float(row["test_accuracy_mean"]) == pytest.approx(np.mean(accuracies))
        assert float(row["test_accuracy_spread"]) == pytest.approx(np.std(accuracies, ddof=1))
        assert float(row["worst_client_mean"]) == pytest.approx(
            np.mean([final["test_accuracy_min"] for final in finals])
        )
        assert (row["seeds"], row["iterations"], row["black_box"]) == ("2", "6", "True")
        assert f"{np.mean(accuracies):.4f} ± {np.std(accuracies, ddof=1):.4f}" in answer.out
    assert int(rows["fedal"]["up_bytes"]) == 6 * 3 * 4 * 10 * 8
    assert rows["local"]["up_bytes"] == "0"


def test_the_plot_is_not_empty(shown: tuple[Path, Answer]) -> None:
    path, answer = shown
    assert str(path / "curves.png") in answer.out
    with Image.open(path / "curves.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 300
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20, "an empty picture"
    assert "<svg" in (path / "curves.svg").read_text()


def test_the_legend_of_all_methods_leaves_room_for_the_curves(shown: tuple[Path, Answer], tmp_path: Path) -> None:
    """A warning is an error here, and matplotlib warns when the axes have no room."""
    run = fedal.load_run(shown[0] / "local" / "seed-0")
    plot_curves(Comparison(tmp_path, (0,), [MethodRuns(name, [run]) for name in fedal.methods.MODULES], []))
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.height > picture.width


def test_every_run_of_a_comparison_equals_a_plain_run(shown: tuple[Path, Answer], tmp_path: Path) -> None:
    alone = fedal.run(fedal.Config(method="fedal", seed=1, **SETTINGS), tmp_path / "alone")
    assert outcome(alone.path) == outcome(shown[0] / "fedal" / "seed-1")


@pytest.mark.processes
def test_two_parallel_runs_are_bit_identical(shown: tuple[Path, Answer], tmp_path: Path) -> None:
    answer = command_compare("--methods", "local,fedal", "--out", tmp_path, "--jobs", 2)
    assert answer.code == 0, answer.err
    for run in ("local/seed-0", "local/seed-1", "fedal/seed-0", "fedal/seed-1"):
        assert outcome(tmp_path / run) == outcome(shown[0] / run)


def test_an_interrupted_comparison_resumes_without_repeating_finished_runs(
    shown: tuple[Path, Answer], tmp_path: Path
) -> None:
    path = tmp_path / "cmp"
    shutil.copytree(shown[0], path)
    shutil.rmtree(path / "fedal" / "seed-1")  # never started
    (path / "fedal" / "seed-0" / "summary.json").unlink()  # stopped just before the end
    kept = {file: file.stat().st_mtime_ns for file in (path / "local").rglob("*")}
    answer = command_compare("--methods", "local,fedal", "--out", path, "--jobs", 1)
    assert answer.code == 0, answer.err
    assert kept == {file: file.stat().st_mtime_ns for file in (path / "local").rglob("*")}
    for run in ("fedal/seed-0", "fedal/seed-1"):
        assert outcome(path / run) == outcome(shown[0] / run)
    with open(path / "table.csv") as one, open(shown[0] / "table.csv") as other:
        rows = [[{**row, "seconds_mean": ""} for row in csv.DictReader(file)] for file in (one, other)]
    assert rows[0] == rows[1]


def test_a_comparison_can_be_extended_by_methods_and_seeds(shown: tuple[Path, Answer], tmp_path: Path) -> None:
    shutil.copytree(shown[0], tmp_path / "cmp")
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "cmp" / "fedal" / "seed-0").rglob("*")}
    grown = compare(["fedal", "fedmd"], 3, tmp_path / "cmp", SETTINGS, jobs=1)
    assert [(row.method, len(row.runs)) for row in grown.rows] == [("fedal", 3), ("fedmd", 3), ("local", 2)]
    assert kept == {file: file.stat().st_mtime_ns for file in (tmp_path / "cmp" / "fedal" / "seed-0").rglob("*")}


@pytest.mark.parametrize(
    ("words", "naming"),
    [
        (["--alpha", "2"], "(alpha: 1.0 there, 2.0 here)"),
        (["--iterations", "8"], "(iterations: 6 there, 8 here)"),
        (["--set", "tau=3"], "(tau: 2 there, 3 here)"),
        (["--set", "public_size=200"], "(public_size: 300 there, 200 here)"),
        (["--partition", "iid"], "(partition: 'dirichlet' there, 'iid' here)"),
        (["--set", "adversarial=0.5"], "(adversarial: 1.0 there, 0.5 here)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_differ_from_the_folder_are_refused(
    shown: tuple[Path, Answer], words: list[str], naming: str
) -> None:
    before = {file: file.stat().st_mtime_ns for file in shown[0].rglob("*")}
    answer = command_compare("--methods", "local,fedal", "--out", shown[0], *words)
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith(f"error: {shown[0]}") and naming in line
    assert before == {file: file.stat().st_mtime_ns for file in shown[0].rglob("*")}


def test_a_default_that_differs_from_the_folder_is_refused_too(tmp_path: Path) -> None:
    """An omitted setting means its default, not the folder's value."""
    compare(["local"], 1, tmp_path, {**SETTINGS, "public_size": 100, "partition": "iid"}, jobs=1)
    with pytest.raises(ConfigError, match="partition: 'iid' there, 'dirichlet' here"):
        compare(["local"], 1, tmp_path, SETTINGS, jobs=1)
    with pytest.raises(ConfigError, match="public_size: 100 there, 300 here"):
        compare(["local"], 1, tmp_path, {**SETTINGS, "partition": "iid"}, jobs=1)
    compare(["local"], 1, tmp_path, {**SETTINGS, "public_size": 100, "partition": "iid", "workers": 2}, jobs=1)


def test_a_client_that_is_too_small_stops_a_comparison_before_the_first_run(tmp_path: Path) -> None:
    """The smallest clients of seeds 0, 1, 2, 3 have 318, 208, 287 and 267 samples."""
    out = tmp_path / "cmp"
    answer = command_compare("--methods", "local,fedal", "--seeds", 4, "--set", "min_samples=280", "--out", out)
    assert (answer.code, answer.err) == (
        2,
        'error: seed 1: client "client-02" gets 208 samples; the minimum is 280; there are such clients at seed 3 too. '
        "Try a larger alpha, fewer clients, or --set min_samples=208.\n",
    )
    assert not out.exists()


def test_the_advised_remedy_continues_the_same_folder(tmp_path: Path) -> None:
    settings = {**SETTINGS, "min_samples": 280}
    compare(["local"], 1, tmp_path, settings, jobs=1)
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "local" / "seed-0").rglob("*")}
    with pytest.raises(ConfigError, match=r"seed 1: .* --set min_samples=208"):
        compare(["local"], 2, tmp_path, settings, jobs=1)
    grown = compare(["local"], 2, tmp_path, {**settings, "min_samples": 208}, jobs=1)
    assert [run.config.min_samples for run in grown.rows[0].runs] == [280, 208]
    assert kept == {file: file.stat().st_mtime_ns for file in (tmp_path / "local" / "seed-0").rglob("*")}


def test_the_effective_number_of_classes_is_in_every_table(shown: tuple[Path, Answer]) -> None:
    path, answer = shown
    runs = [fedal.load_run(path / "fedal" / f"seed-{seed}") for seed in (0, 1)]
    effective = np.mean([run.effective_classes for run in runs])
    assert f"dirichlet, alpha 1, {effective:.2f} effective classes per client" in " ".join(answer.out.split())
    with open(path / "table.csv") as file:
        for row in csv.DictReader(file):
            assert float(row["effective_classes_mean"]) == pytest.approx(effective, abs=1e-4)


def test_a_comparison_with_client_tables_can_be_resumed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "clients": [{"name": "north"}, {"model": "mlp-small", "count": 2}]}
    compare(["local"], 1, tmp_path, settings, jobs=1)
    assert compare(["local"], 1, tmp_path, settings, jobs=1).rows[0].runs[0].config.client_names[0] == "north"


@pytest.mark.parametrize(
    ("words", "naming"),
    [
        (
            ["--set", "temperatur=2"],
            "temperatur: not a setting, and not an option of local, fedal. Did you mean temper",
        ),
        (["--set", "alhpa=2"], "Did you mean alpha?"),
        (["--methods", "local,fedall"], 'Did you mean "fedal"?'),
        (["--set", "seed=3"], "use --seeds"),
        (["--set", "method=local"], "use --methods"),
        (["--alpha", "0"], "alpha = 0"),
        (["--dataset", "mnist"], "fedal data fetch mnist"),
        (["--rounds", "3"], "give one of them"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_before_anything_is_written(
    words: list[str], naming: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAL_DATA", str(tmp_path / "no data"))
    answer = command_compare("--methods", "local,fedal", "--jobs", 1, "--out", tmp_path / "cmp", *words)
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ") and naming in line
    assert not list(tmp_path.rglob("config.toml"))


def test_an_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    answer = command_compare("--methods", "local", "--out", tmp_path / "notes")
    assert answer.code == 2
    assert answer.err.startswith("error: ") and len(answer.err.splitlines()) == 1


def test_an_option_of_one_method_applies_to_that_method(tmp_path: Path) -> None:
    result = compare(["local", "fedmd", "fedal"], 1, tmp_path, {**SETTINGS, "adversarial": 0.25}, jobs=1)
    options = {row.method: row.runs[0].config.options.model_dump() for row in result.rows}
    assert options["fedal"]["adversarial"] == 0.25
    assert "adversarial" not in options["fedmd"] and "adversarial" not in options["local"]
    assert all(each["tau"] == 2 for each in options.values())


def test_settings_come_from_a_file_too_and_the_command_line_wins(tmp_path: Path) -> None:
    lines = [f"{key} = {value}" for key, value in SETTINGS.items() if key not in ("tau", "models")]
    text = "\n".join(['method = "fedmd"', "seed = 9", 'models = "mlp-small"', *lines, "[options]", "tau = 3"])
    (tmp_path / "mine.toml").write_text(text)
    words = ["--config", tmp_path / "mine.toml", "--rounds", 1, "--set", "tau=2"]
    answer = command("compare", "--methods", "local", "--seeds", 1, "--out", tmp_path / "cmp", "--jobs", 1, *words)
    assert answer.code == 0, answer.err
    config = fedal.load_run(tmp_path / "cmp" / "local" / "seed-0").config
    assert (config.method, config.seed, config.tau, config.total_rounds, config.batch_size) == ("local", 0, 2, 1, 8)


def _start_endless(path: Path) -> subprocess.Popen[str]:
    """Starts a comparison that never ends by itself, and waits until both of its worker processes run."""
    words = ["compare", "--methods", "local,fedal", "--seeds", "2", *WORDS, "--out", str(path), "--jobs", "2"]
    words += ["--iterations", "200000", "--set", "checkpoint_every=1000000"]
    before = _recorded(path)
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while len([file for file, size in _recorded(path).items() if size not in (0, before.get(file))]) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def _recorded(path: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in path.glob("*/*/metrics.jsonl")}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.processes
def test_workers_end_with_their_parent_and_ctrl_c_saves_all_runs(tmp_path: Path) -> None:
    process = _start_endless(tmp_path)
    workers = _children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while any(map(_is_alive, workers)):
        assert time.monotonic() < end, "workers outlived the comparison"
        time.sleep(0.05)

    process = _start_endless(tmp_path)  # continues in the same folders
    process.send_signal(signal.SIGINT)  # to the parent alone, which must stop its workers
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "finishing the round" in err and "Traceback" not in err
    assert f"Continue with the same command: fedal compare --methods local,fedal --seeds 2 {WORDS[0]}" in err
    assert f"--out {tmp_path}" in err.splitlines()[-1] and "resume" not in err
    started = [file.parent for file in tmp_path.glob("*/*/metrics.jsonl") if file.stat().st_size]
    assert len(started) >= 2
    for folder in started:
        assert list(folder.glob("checkpoints/round-*.json")), "a run was stopped without being saved"
        assert not (folder / "failure.json").exists()
