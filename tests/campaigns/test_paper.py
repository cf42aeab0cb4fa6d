"""The paper's tables and figures by name: numbers as printed, labelled small-scale runs, nothing skipped silently."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedal
from commands import fedal as command
from fedal import methods
from fedal.campaigns.compare import MethodRuns
from fedal.campaigns.job import Job
from fedal.campaigns.paper.entries import (
    ENTRIES,
    SMALL_SCALES,
    PaperEntry,
    SmallScale,
    find,
    full_settings,
    small_settings,
)
from fedal.campaigns.paper.outcome import Outcome
from fedal.campaigns.paper.reproduce import _small_options, _what_small_means, folder_name, reproduce
from fedal.config import Config
from fedal.errors import Stopped
from fedal.figures.paper import _draw_curves, draw
from fedal.report.collect import read_record

TINY = {"clients": 3, "iterations": 10, "min_samples": 1, "batch_size": 16, "eval_samples": 50, "models": "same"}
NAMES = (
    "fig-output-matrix", "fig-data", "fig-gradient-variance", "fig-mnist", "fig-svhn", "fig-cifar",
    "fig-svhn-shareable", "fig-communication", "table-celeba", "table-cinic", "table-fd-svhn", "table-fd-cifar",
    "table-ablation", "table-public-size",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_data_and_tiny_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDAL_DATA", str(tmp_path / "no-data"))
    monkeypatch.setitem(SMALL_SCALES, "digits", SmallScale(TINY, seeds=1, run_s=1, public_share=0.3))


def shortened(name: str, columns: int = 1, only: tuple[str, ...] = ()) -> PaperEntry:
    entry = find(name)
    return replace(entry, columns=entry.columns[:columns], methods=only or entry.methods)


def is_picture(path: Path) -> bool:
    with Image.open(path) as picture:
        return min(picture.size) > 200 and len(picture.convert("RGB").getcolors(1 << 24) or []) > 20


def test_the_list_has_every_table_and_figure() -> None:
    answer = command("paper", "list")
    assert answer.code == 0
    assert tuple(entry.name for entry in ENTRIES) == NAMES
    assert all(name in answer.out for name in NAMES)
    assert "digits in place of" in " ".join(answer.out.split())


def test_an_unknown_name_gets_the_nearest_one_and_writes_nothing(tmp_path: Path) -> None:
    answer = command("paper", "tab-ablation", "--out", tmp_path / "p")
    assert answer.code == 2
    assert "Did you mean table-ablation?" in answer.err
    assert not (tmp_path / "p").exists()


def test_an_unknown_scale_is_an_error() -> None:
    answer = command("paper", "fig-data", "--scale", "huge")
    assert (answer.code, answer.err) == (2, "error: --scale huge: expected small or full.\n")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_full_is_the_papers_configuration(entry: PaperEntry) -> None:
    tau = {"fedmd": 1, "fedproto-public": 1, "fedal": 5, "fedmd-lf": 5, "feddf": 10, "feddf-al": 15}
    for column in entry.columns:
        settings = full_settings(entry, column)
        for method in [name for name in entry.methods_in(column) if name in methods.names()]:
            config = Config(**settings, method=method)
            assert config.lr == (1e-4 if entry.dataset == "celeba" else 1e-3)
            assert (config.batch_size, config.optimizer) == (32, "adam")
            assert config.tau == column.settings.get("tau", tau.get(method, config.tau))
            assert config.partition == ("by-user" if entry.dataset == "celeba" else "dirichlet-client-k")
        assert settings["clients"] == {"mnist": 10, "svhn": 20, "cifar10": 15, "cinic10": 10}.get(
            entry.dataset, column.settings.get("clients")
        )
        if entry.dataset in ("celeba", "cinic10"):
            assert settings["iterations"] == 10_000


def test_runs_with_other_settings_never_share_a_folder() -> None:
    seen: dict[tuple[str, str], dict[str, object]] = {}
    for entry in ENTRIES:
        for column in entry.columns:
            for scale, settings in {
                "full": full_settings(entry, column),
                "small": small_settings(entry, column, entry.dataset),
                "stand-in": small_settings(entry, column, "digits"),
            }.items():
                assert seen.setdefault((scale, folder_name(settings)), settings) == settings


def test_the_papers_numbers_are_those_of_its_tables() -> None:
    means = {
        (entry.name, column.name, what): number[0]
        for entry in ENTRIES
        for column in entry.columns
        for what, number in column.paper.items()
        if not isinstance(number, str)
    }
    assert len(means) == 3 + 10 + 9 + 12 + 18 + 18
    assert means["table-ablation", "alpha 2", "fedal"] == 0.744
    assert means["table-public-size", "|P| 600", "fedmd"] == 0.60
    assert means["table-fd-cifar", "alpha 1", "fedproto-public"] == 0.22
    assert means["table-cinic", "alpha 5", "fccl+"] == 0.41
    assert means["table-celeba", "N 50", "cfd"] == 0.53


def test_a_small_scale_run_shows_our_numbers_next_to_the_papers_and_names_its_data(tmp_path: Path) -> None:
    answer = command("paper", "table-ablation", "--out", tmp_path, "--seeds", 2, "--jobs", 1, "--quiet", "--resume")
    assert answer.code == 0, answer.err
    said = " ".join(answer.out.split())
    assert "digits in place of svhn, which is not installed (type: fedal data fetch svhn)" in said
    assert "a small-scale run, not the paper's setting" in said
    with open(tmp_path / "small" / "table-ablation.csv") as file:
        rows = {(row["setting"], row["what"]): row for row in csv.DictReader(file)}
    assert [*rows] == [*(("alpha 2", name) for name in ("fedmd", "fedmd-lf", "fedal")), ("alpha 2, tau 5", "fedmd")]
    tau_1, tau_5 = (rows[setting, "fedmd"] for setting in ("alpha 2", "alpha 2, tau 5"))
    assert tau_1["config"].endswith("tau 1") and tau_5["config"].endswith("tau 5") and tau_1["ours"] != tau_5["ours"]
    assert (tau_1["paper"], tau_5["paper"]) == ("0.722", "not in the paper") and tau_5["low"] < tau_5["high"]
    row = rows["alpha 2", "fedal"]
    runs = [fedal.load_run(tmp_path / "small" / row["folder"] / f"seed-{seed}") for seed in range(2)]
    effective = sum(run.effective_classes for run in runs) / 2
    assert f"dirichlet-client-k, alpha 2, {effective:.2f} effective classes per client" in row["config"]
    assert (row["paper"], row["paper_spread"], row["seeds"]) == ("0.744", "0.007", "2")
    assert float(row["difference"]) == pytest.approx(float(row["ours"]) - 0.744)
    finals = [
        json.loads((tmp_path / "small" / row["folder"] / f"seed-{seed}" / "summary.json").read_text())
        for seed in (0, 1)
    ]
    accuracies = [final["final"]["test_accuracy"] for final in finals]
    assert float(row["ours"]) == pytest.approx(np.mean(accuracies))
    assert float(row["spread"]) == pytest.approx(np.std(accuracies, ddof=1))
    reach = 12.706 * np.std(accuracies, ddof=1) / np.sqrt(2)  # Student's t with one degree of freedom
    assert (float(row["low"]), float(row["high"])) == pytest.approx(
        (np.mean(accuracies) - reach, np.mean(accuracies) + reach), abs=1e-4
    )
    text = (tmp_path / "small" / "table-ablation.md").read_text()
    assert f"{float(row['low']):.3f} to {float(row['high']):.3f}" in text
    assert "| setting | what | ours | 95% interval | paper | difference | spread | seeds | steps | config |" in text
    assert "| 0.744 ± 0.007 |" in text and "in place of svhn" in text
    assert is_picture(tmp_path / "small" / "table-ablation.png")
    assert "<svg" in (tmp_path / "small" / "table-ablation.svg").read_text()


@pytest.mark.parametrize("name", ["table-ablation", "table-public-size"])
def test_the_small_tables_whose_rows_are_compared_have_intervals(name: str) -> None:
    assert find(name).small_on("svhn").seeds == 3


def test_full_without_the_data_says_so_in_the_table(tmp_path: Path) -> None:
    answer = command("paper", "table-fd-svhn", "--scale", "full", "--out", tmp_path)
    assert answer.code == 1
    text = (tmp_path / "full" / "table-fd-svhn.md").read_text()
    assert text.count("svhn is not installed; type: fedal data fetch svhn") == 9
    assert "0.78 ± 0.003" in text


def test_a_missing_or_unfit_method_has_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = replace(SMALL_SCALES["digits"], settings={**TINY, "models": "auto"})
    monkeypatch.setitem(SMALL_SCALES, "digits", mixed)
    entry = shortened("fig-svhn", only=("local", "fedavg", "fed-from-tomorrow"))
    outcome = reproduce(entry, "small", tmp_path, jobs=1)
    reasons = {line.what: line.reason for line in outcome.lines}
    assert reasons["local"] == ""
    assert reasons["fedavg"].startswith("not applicable: fedavg averages parameters of one architecture")
    assert reasons["fed-from-tomorrow"] == "this method is not installed"


def test_an_interrupted_entry_resumes_without_repeating_runs(tmp_path: Path) -> None:
    entry = shortened("fig-communication", only=("fedal", "fedavg"))
    events: list[tuple[str, str]] = []

    def watch(job: Job, event: str, details: object) -> None:
        events.append((job.name, event))

    with pytest.raises(Stopped, match="Rerun the same command"):
        reproduce(entry, "small", tmp_path, jobs=1, watch=watch, should_stop=lambda: ("fedal", "finished") in events)
    events.clear()
    outcome = reproduce(entry, "small", tmp_path, jobs=1, watch=watch)
    assert [event for event in events if event[1] == "started"] == [("fedavg", "started")]
    assert all(line.values for line in outcome.lines)
    assert {line.paper for line in outcome.lines} == {"figure only"}
    assert is_picture(draw(outcome)[0])


def test_every_method_of_a_small_scale_run_exchanges_something(tmp_path: Path) -> None:
    """FCCL first pretrains without exchange, but only for a part of the few iterations."""
    outcome = reproduce(shortened("fig-svhn"), "small", tmp_path, jobs=1)
    (rows,) = outcome.rows.values()
    assert {row.method: min(run.final["up_bytes"] for run in row.runs) > 0 for row in rows} == dict.fromkeys(
        ("fedal", "fedmd", "cfd", "fccl", "fccl+"), True
    )


@pytest.mark.parametrize("name", ["fig-svhn", "fig-communication"])
def test_the_note_of_a_small_scale_run_states_its_settings(name: str) -> None:
    entry = find(name)
    said, used = _what_small_means(entry, "svhn"), small_settings(entry, entry.columns[0], "svhn")
    models = used["models"] if isinstance(used["models"], str) else " and ".join(used["models"])
    assert f"models {models}," in said and f"iterations {used['iterations']}," in said
    assert all(f"{key} {value}" in said for key, value in _small_options(entry, "svhn").items())
    assert _small_options(entry, "svhn") == {"pretrain_iterations": 20, "server_model": "wrn-16-1"}


def recorded(*accuracies: float, **columns: list[int]) -> MethodRuns:
    """A row of a comparison with one run."""
    rows = [
        {"phase": "after_global", "iteration": i + 1, "test_accuracy": value, **{k: v[i] for k, v in columns.items()}}
        for i, value in enumerate(accuracies)
    ]
    run: Any = SimpleNamespace(metrics=rows, config=SimpleNamespace(seed=0))
    return MethodRuns("fedal", [run])


def test_a_curve_against_bytes_starts_at_the_first_upload() -> None:
    row = recorded(0.1, 0.2, 0.3, up_bytes=[0, 10**6, 2 * 10**6])
    outcome: Any = SimpleNamespace(entry=find("fig-communication"), rows={"a": [row]})
    (line,) = _draw_curves(outcome).axes[0].lines
    assert line.get_xdata().tolist() == [1, 2] and line.get_ydata().tolist() == [0.2, 0.3]


def test_panels_share_a_scale_that_shows_all_of_every_panel() -> None:
    outcome: Any = SimpleNamespace(entry=find("fig-svhn"), rows={"a": [recorded(0.4, 0.5)], "b": [recorded(0.1, 0.9)]})
    figure = _draw_curves(outcome)
    figure.canvas.draw()
    (low, high), same = (axes.get_ylim() for axes in figure.axes)
    assert low < 0.1 and high > 0.9 and same == (low, high)


def test_gradient_variances_are_those_recorded_by_the_run(tmp_path: Path) -> None:
    outcome = reproduce(shortened("fig-gradient-variance"), "small", tmp_path, jobs=1)
    run = outcome.rows["alpha 1"][0].runs[0]
    largest = {line.what: line.ours for line in outcome.lines}
    assert list(largest) == ["l", "k", "u", "rl", "rg", "n"]
    assert largest["k"] == max(row["variance_k"] for row in run.metrics if "variance_k" in row)
    assert [line.paper for line in outcome.lines] == ["< 60", "< 60", "< 3", "< 3", "< 3", "< 3"]
    assert is_picture(draw(outcome)[0])


def test_output_matrices_are_mean_probabilities_and_the_report_reads_them(tmp_path: Path) -> None:
    outcome = reproduce(shortened("fig-output-matrix"), "small", tmp_path, jobs=1)
    matrix = outcome.matrices["alpha 5", "fedal"]
    assert matrix.shape == (3, 10)
    assert np.allclose(matrix.sum(1), 1)
    line = next(line for line in outcome.lines if line.what == "fedal")
    assert line.ours == pytest.approx(matrix[:, 3].mean())
    record = read_record(tmp_path / "small" / line.folder / "seed-0", "it")
    assert np.allclose(record.output_matrices["after"], matrix)
    assert list(record.output_matrices) == ["before", "after"] and not record.problems
    assert is_picture(draw(outcome)[0])


def test_smaller_alpha_leaves_fewer_classes_to_a_client(tmp_path: Path) -> None:
    outcome: Outcome = reproduce(find("fig-data"), "small", tmp_path, seeds=3)
    many, some, few = (line.ours for line in outcome.lines)
    assert many is not None and some is not None and few is not None
    assert 10 > many > some > few > 1
    assert is_picture(draw(outcome)[0])
