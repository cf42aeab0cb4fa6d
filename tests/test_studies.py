"""The studies behind docs/results run once, resume after any stop, and the page shows their results."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from studies import partitions, result_files
from studies.result_files import CURVE_POINTS, Result, collect, extract, read_results, thinned_curve
from studies.results_page import BEGIN, END, generate, read_study, write_page
from studies.results_plan import PAGE_FOLDER, ROOT, ResultsPlan, read_plan
from studies.run import missing, run_plan

from fedal.config import read_toml
from fedal.errors import ConfigError
from fedal.records.run import Run

TINY = """
dataset = "digits"
clients = 2
models = "mlp-small"
batch_size = 8
eval_every = {tau}
iterations = {iterations}
tau = {tau}
"""
PLAN = """
[arms]
fedal-quick = { method = "fedal", discriminator_lr = 1e-2 }

[[questions]]
text = "Does the adversary help?"
pairs = [["fedal-quick", "fedmd-lf"]]

[[studies]]
name = "tiny"
title = "Tiny digits"
seeds = [0, 1]
arms = ["fedal-quick", "fedmd-lf"]
"""


def write_plan(folder: Path, first: str = "", iterations: int = 4, tau: int = 2) -> ResultsPlan:
    (folder / "configs").mkdir(parents=True)
    (folder / "plan.toml").write_text(first + PLAN)
    (folder / "configs" / "tiny.toml").write_text(TINY.format(iterations=iterations, tau=tau))
    (folder / "README.md").write_text(f"# Results\n\nwords\n\n{BEGIN}\nold\n{END}\n\nmore words\n")
    return read_plan(folder)


def write_result(folder: Path, arm: str, seed: int, accuracy: float, validation: float | None = None) -> None:
    """A small result file, without a run."""
    curve = {"iteration": [2, 4], "test_accuracy": [0.1, accuracy]}
    if arm.startswith("fedal"):
        curve |= {"discriminator_accuracy": [0.5, 0.7], "adversarial_grad_norm": [0.01, 0.03]}
    final = {"test_accuracy": accuracy, "test_accuracy_min": accuracy - 0.1}
    if validation is not None:
        final |= {"validation_accuracy": validation, "validation_accuracy_min": validation - 0.1}
        final |= {"validation_ensemble_accuracy": 0.4, "validation_bias": 0.25, "validation_gap": 0.125}
    path = folder / "data" / "tiny" / arm / f"seed-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    agreement = {"fresh": 0.8, "team_on_test": accuracy + 0.05}
    content = {"config": {}, "environment": {}, "final": final, "curve": curve, "agreement": agreement}
    path.write_text(json.dumps(content))


@pytest.mark.processes
def test_missing_runs_are_run_once_and_shown_with_their_final_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, runs = tmp_path / "page", tmp_path / "runs"
    (study,) = write_plan(folder).studies
    plan = read_plan(folder)
    jobs = missing([study], runs, folder)
    assert [(job.name, job.seed) for job in jobs] == [
        ("fedal-quick", 0), ("fedmd-lf", 0), ("fedal-quick", 1), ("fedmd-lf", 1),
    ]  # fmt: skip
    broken, *intact = jobs[2], *jobs[:2]
    broken.folder.parent.mkdir(parents=True)
    broken.folder.write_text("a file where a folder must go")
    assert run_plan([broken, *intact], 2) == [broken]  # the others run all the same
    assert "is a file; expected a folder" in capsys.readouterr().out
    broken.folder.unlink()
    assert missing([study], runs, folder) == jobs[2:]

    assert len(collect(plan, runs, folder)) == 2
    write_page(plan, folder)
    final = Run(runs / "tiny" / "fedal-quick" / "seed-0").final
    page = (folder / "README.md").read_text()
    assert f"{final['test_accuracy']:.4f}" in page
    assert "2 of 4" in page and "fedmd-lf (seed 1)" in page
    assert "no statement: one seed" in page
    assert "--method fedal --set discriminator_lr=0.01" in page
    assert "\nold\n" not in page and "words" in page and "more words" in page
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".png", ".svg"}
    result = read_results(folder, study, study.arms[0])[0]
    assert result.final["discriminator_accuracy"] == pytest.approx(final["discriminator_accuracy"], abs=1e-6)
    assert result.curve["iteration"] == [2, 4]
    assert 0 <= (result.fresh or -1) <= 1 and 0 <= (result.ensemble("test") or -1) <= 1
    assert collect(plan, runs, folder) == []  # nothing new
    # A result file is enough: a clone of the project does not run again what others have finished.
    assert missing([study], tmp_path / "elsewhere", folder) == [
        replace(job, folder=tmp_path / "elsewhere" / job.folder.relative_to(runs)) for job in jobs[2:]
    ]

    monkeypatch.setattr(result_files, "MANY", 1)  # more clients than this are not compared with each other
    of_many = Result(extract(Run(runs / "tiny" / "fedal-quick" / "seed-0")))
    assert of_many.final == result.final and of_many.fresh is of_many.ensemble("test") is None


@pytest.mark.processes
def test_a_stopped_plan_resumes_where_it_was(tmp_path: Path) -> None:
    folder, runs = tmp_path / "page", tmp_path / "runs"
    plan = write_plan(folder, iterations=100_000)
    words = ["-m", "studies", "run", "--jobs", "1", "--folder", str(folder), "--runs", str(runs)]
    runner = subprocess.Popen([sys.executable, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    record = runs / "tiny" / "fedal-quick" / "seed-0" / "metrics.jsonl"
    end = time.monotonic() + 200  # on a busy machine the runner gives way to everything else
    while not (record.exists() and record.stat().st_size) and time.monotonic() < end:
        time.sleep(0.1)
    runner.send_signal(signal.SIGTERM)
    _, err = runner.communicate(timeout=60)
    assert (runner.returncode, err.strip()) == (
        130,
        "stopped; finished runs are kept. Rerun the same command to continue.",
    )
    saved = Run(record.parent)
    assert not saved.is_complete and list(saved.folder.checkpoints.iterdir())
    assert len(missing(plan.studies, runs, folder)) == 4

    done = saved.metrics[-1]["iteration"]
    changed = (saved.folder.config.read_text()).replace("iterations = 100000", f"iterations = {done + 20}")
    saved.folder.config.write_text(changed)  # a run as long as the test can wait for
    (folder / "configs" / "tiny.toml").write_text(TINY.format(iterations=done + 20, tau=2))
    assert run_plan(missing(read_plan(folder).studies, runs, folder)[:1], 1) == []
    assert Run(record.parent).final["iteration"] == done + 20


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    folder, runs = tmp_path / "page", tmp_path / "runs"
    (study,) = write_plan(folder).studies
    path = runs / "tiny" / "fedal-quick" / "seed-0"
    path.mkdir(parents=True)
    (path / "config.toml").write_text(study.config(study.arms[0], 0).with_(lr=0.5, partition="dirichlet").to_toml())
    with pytest.raises(ConfigError, match=r"lr: 0\.5 there, 0\.001 here"):
        missing([study], runs, folder)


def test_differences_are_paired_by_the_seeds_that_both_have(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "page")
    folder = tmp_path / "page"
    for seed, gain in ((0, 0.10), (1, 0.12)):
        write_result(folder, "fedmd-lf", seed, 0.5 + seed / 10)
        write_result(folder, "fedal-quick", seed, 0.5 + seed / 10 + gain)
    write_page(plan, folder)
    page = (folder / "README.md").read_text()
    assert (
        "| fedal-quick − fedmd-lf | tiny | 2 | +0.1100 | -0.0171 to +0.2371 | 0.058 | 0.058 | not distinguishable |"
        in page
    )
    assert "0.6600 ± 0.0849" in page  # of 0.60 and 0.72
    assert "0.600 (up to 0.700)" in page and "0.0200 (up to 0.0300)" in page
    assert "4 of 4 | none" in page


def test_the_best_arms_come_first_and_those_without_a_run_last(tmp_path: Path) -> None:
    (study,) = write_plan(tmp_path).studies
    write_result(tmp_path, "fedmd-lf", 0, 0.4)
    assert [arm.name for arm in read_study(study, tmp_path).best_first] == ["fedmd-lf", "fedal-quick"]


def test_a_page_without_its_markers_is_refused(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    (tmp_path / "README.md").write_text("# no markers")
    with pytest.raises(ConfigError, match="expected the lines"):
        write_page(plan, tmp_path)


def test_a_long_curve_is_thinned_and_keeps_its_last_point() -> None:
    rows = [
        {"round": n, "iteration": 10 * n, "phase": phase, "test_accuracy": n / 200 - (phase == "after_local") / 10,
         "final": False}
        for n in range(1, 101)
        for phase in ("after_local", "after_global")
    ]  # fmt: skip
    curve = thinned_curve([*rows, rows[-1] | {"final": True, "test_accuracy": 0.51}])
    assert 30 < len(curve["iteration"]) <= CURVE_POINTS
    assert curve["iteration"][-1] == 1000
    assert len({b - a for a, b in pairwise(curve["iteration"])}) == 1
    assert (curve["after_local"][-1], curve["test_accuracy"][-1]) == (0.4, 0.5)


FOLDERS = [PAGE_FOLDER, *(PAGE_FOLDER / name for name in ("search", "final", "lift", "paper", "groups"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_run_of_a_plan_has_a_valid_config_and_every_question_its_arms(folder: Path) -> None:
    plan = read_plan(folder)
    jobs = [job for study in plan.studies for job in study.jobs(Path("runs"))]
    assert len({job.folder for job in jobs}) == len(jobs) > 20
    arms = {arm.name for study in plan.studies for arm in study.arms}
    assert {name for question in plan.questions for pair in question.pairs for name in pair} <= arms
    assert {name for claim in plan.claims for name in claim.pair} <= arms
    with pytest.raises(ConfigError, match='there is no study "mnits"'):
        plan.only(["mnits"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_study_says_how_much_it_holds_out_for_validation(folder: Path) -> None:
    assert all("validation" in read_toml(study.config_file) for study in read_plan(folder).studies)


def test_the_search_is_judged_on_validation_data_and_shares_no_seed_with_the_final_comparison() -> None:
    search, final, lift = (read_plan(PAGE_FOLDER / name).studies for name in ("search", "final", "lift"))
    assert {study.measured_on for study in search} == {"validation"}
    assert {study.measured_on for study in final} == {"test"}
    used, fresh = ({seed for study in studies for seed in study.seeds} for studies in (search, (*final, *lift)))
    assert not used & fresh and not fresh & {0, 1, 2}  # of the runs that led to the search


def test_a_search_never_shows_test_accuracy(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, 'measured_on = "validation"\n')
    for seed, gain in ((0, 0.10), (1, 0.12)):
        write_result(tmp_path, "fedmd-lf", seed, 0.9, validation=0.5)
        write_result(tmp_path, "fedal-quick", seed, 0.1, validation=0.5 + gain)
    page = generate(plan, tmp_path)
    assert "| arm | seeds | validation accuracy | worst client |" in page and "test accuracy" not in page
    assert page.index("| fedal-quick | 2 | 0.6100") < page.index("| fedmd-lf | 2 | 0.5000")
    assert "+0.1100" in page and "0.9000" not in page
    assert "ensemble | bias | gap |" in page and "| 0.4000 | 0.250 | 0.125 |" in page


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [
        ((0.100, 0.101), "confirmed here (+0.1005, p (Holm) 0.003 over"),
        ((-0.100, -0.101), "contradicted here (-0.1005, p (Holm) 0.003 over"),
        ((0.1, -0.1), "neither confirmed nor contradicted here: the two are not distinguishable (+0.0000,"),
        ((0.1,), "not tested here yet: one seed has no spread (+0.1000)."),
    ],
)
def test_a_study_says_what_became_of_a_claim(tmp_path: Path, gains: tuple[float, ...], outcome: str) -> None:
    claim = '[[claims]]\ntext = "adversaries help"\npair = ["fedal-quick", "fedmd-lf"]\n'
    plan = write_plan(tmp_path, claim)
    for seed, gain in enumerate(gains):
        write_result(tmp_path, "fedmd-lf", seed, 0.5)
        write_result(tmp_path, "fedal-quick", seed, 0.5 + gain)
    assert f"(figures/tiny.png)\n\nThe paper's claim that adversaries help is {outcome}" in generate(plan, tmp_path)


def test_a_plan_judged_on_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='measured_on = "training": expected test or validation'):
        write_plan(tmp_path, 'measured_on = "training"\n')


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_page_shows_what_the_result_files_say(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == generate(read_plan(folder), folder)
    figures = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert bool(figures) == any((folder / "data").rglob("seed-*.json"))
    assert all((folder / figure).exists() for figure in figures)


def test_the_moments_of_partitions_are_those_on_the_page() -> None:
    """Some rows are drawn again; the others cannot be old while these are new."""
    page = partitions.PAGE.read_text(encoding="utf-8").split(partitions.BEGIN)[1].split(partitions.END)[0]
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    shown = [[cell.strip() for cell in line] for line in lines]
    for name in ("dirichlet-client-k", "dirichlet-client-k-overlap", "dirichlet-client-k-balanced"):
        assert partitions.row(name, 1.0, 10) in shown
    assert partitions.row("dirichlet-client", 0.1, 20) in shown
    played = [line[:3] for line in shown]
    for family in partitions.FAMILIES:
        for alpha in partitions.ALPHAS:
            own = partitions.own_row(family, alpha)
            assert any(line[2:6] == own[2:6] for line in shown)
            for reading in partitions.READINGS:
                assert all([f"{alpha:g}", str(n), f"`{family}{reading}`"] in played for n in partitions.CLIENTS)
