"""What a comparison keeps, refuses, writes and prints, and the objects it takes in Python."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_compare import SETTINGS, WORDS
from torch import nn

import fedal
from commands import fedal as command
from e2e.lives import outcome
from fedal import methods
from fedal.campaigns.compare import compare
from fedal.campaigns.comparison import Comparison, MethodRuns
from fedal.campaigns.comparison_folder import method_folder, refuse_clashes
from fedal.campaigns.comparison_text import caption, latex_table, markdown_table
from fedal.data import load as load_data
from fedal.data.dataset import Dataset
from fedal.errors import ConfigError, FedalError
from fedal.records.statistics import Row
from fedal.records.tables import as_latex, escape_latex, escape_markdown
from fedal.report.page import write_report


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods with two seeds."""
    path = tmp_path_factory.mktemp("comparison") / "cmp"
    compare(["local", "fedmd"], 2, path, SETTINGS, jobs=1)
    return path


@pytest.fixture
def folder(old: Path, tmp_path: Path) -> Path:
    shutil.copytree(old, tmp_path / "cmp")
    return tmp_path / "cmp"


def lines(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def content(path: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_a_call_with_other_methods_and_fewer_seeds_drops_nothing(folder: Path) -> None:
    before = {line["method"]: line for line in lines(folder / "table.csv")}
    found = compare(["fedal", "local"], 1, folder, SETTINGS, jobs=1)
    assert [(row.method, len(row.runs), row.asked) for row in found.rows] == [
        ("fedal", 1, True), ("local", 2, True), ("fedmd", 2, False),
    ]  # fmt: skip
    assert [(row.method, len(row.runs)) for row in found.asked] == [("fedal", 1), ("local", 1)]
    after = {line["method"]: line for line in lines(folder / "table.csv")}
    assert [(name, line["asked"]) for name, line in after.items()] == [
        ("fedal", "True"), ("local", "True"), ("fedmd", "False"),
    ]  # fmt: skip
    for name, line in before.items():
        assert {**line, "asked": ""} == {**after[name], "asked": ""}
    asked = {(line["method"], line["seed"]): line["asked"] for line in lines(folder / "runs.csv")}
    assert asked == {
        ("fedal", "0"): "True", ("local", "0"): "True", ("local", "1"): "False", ("fedmd", "0"): "False",
        ("fedmd", "1"): "False",
    }  # fmt: skip
    table = found.table()
    assert [(cells["method"], cells["seeds"]) for cells in table] == [("fedal", "1"), ("local", "2"), ("fedmd *", "2")]


def test_each_run_and_each_difference_has_its_own_row(old: Path) -> None:
    runs = {(line["method"], int(line["seed"])): line for line in lines(old / "runs.csv")}
    assert list(runs) == [("local", 0), ("local", 1), ("fedmd", 0), ("fedmd", 1)]
    for (method, seed), line in runs.items():
        run = fedal.load_run(old / method / f"seed-{seed}")
        assert float(line["test_accuracy"]) == run.final["test_accuracy"]
        assert float(line["worst_client"]) == run.final["test_accuracy_min"]
        assert (int(line["up_bytes"]), int(line["iterations"])) == (run.final["up_bytes"], 6)
        assert int(line["steps"]) == {"local": 6, "fedmd": 12}[method]
        with np.load(run.folder.partition) as arrays:
            shares = arrays["class_counts"] / arrays["class_counts"].sum(1, keepdims=True)
        by_hand = [np.exp(-sum(q * np.log(q) for q in each if q > 0)) for each in shares]
        assert float(line["effective_classes"]) == pytest.approx(np.mean(by_hand))
    rows = lines(old / "differences.csv")
    gains = [
        float(runs["fedmd", seed]["test_accuracy"]) - float(runs["local", seed]["test_accuracy"]) for seed in (0, 1)
    ]
    assert [(row["method"], row["baseline"], row["seed"]) for row in rows] == [
        ("fedmd", "local", "0"), ("fedmd", "local", "1"),
    ]  # fmt: skip
    assert [float(row["difference"]) for row in rows] == pytest.approx(gains)
    assert [float(row["difference_mean"]) for row in rows] == pytest.approx([np.mean(gains)] * 2)
    assert {row["p"] for row in rows} == {row["p_holm"] for row in rows}, "one difference needs no correction"


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"alpha": 2.0}, r"local.seed-0 .*alpha: 1.0 there, 2.0 here|fedmd.seed-0 .*alpha: 1.0 there, 2.0 here"),
        ({"iterations": 8}, "iterations: 6 there, 8 here"),
    ],
)
def test_a_method_with_other_settings_than_the_rest_of_the_folder_is_refused(
    folder: Path, changes: dict[str, Any], naming: str
) -> None:
    before = content(folder)
    with pytest.raises(ConfigError, match=naming):
        compare(["fedal"], 1, folder, {**SETTINGS, **changes}, jobs=1)
    assert content(folder) == before


def test_a_method_that_is_not_asked_for_keeps_its_options(tmp_path: Path) -> None:
    compare(["fedmd"], 1, tmp_path, {**SETTINGS, "distillation": 0.5}, jobs=1)
    found = compare(["fedal"], 1, tmp_path, SETTINGS, jobs=1)
    assert [row.runs[0].config.options.model_dump()["distillation"] for row in found.rows] == [1.0, 0.5]


def test_a_single_run_a_foreign_folder_and_other_code_are_refused(folder: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    for path, naming in (
        (folder / "local" / "seed-0", "holds a single run; expected a comparison"),
        (foreign, "is not a comparison (it holds thesis.tex)"),
    ):
        before = content(path)
        answer = command("compare", "--methods", "local", "--seeds", 1, *WORDS, "--out", path)
        assert answer.code == 2 and naming in answer.err and len(answer.err.splitlines()) == 1
        assert content(path) == before
    config = folder / "fedmd" / "seed-0" / "config.toml"
    config.write_text(config.read_text().replace('method = "fedmd"', 'method = "stranger.code:METHOD"'))
    with pytest.raises(ConfigError, match=r'other code, "stranger\.code:METHOD"'):
        compare(["local"], 1, folder, SETTINGS, jobs=1)


# tables for a paper


class FakeRuns(MethodRuns):
    """A method with given accuracies, one per seed."""

    def __init__(self, method: str, *accuracies: float) -> None:
        super().__init__(method, runs=[None] * len(accuracies))  # type: ignore[list-item]
        self.accuracies = accuracies

    @property
    def rows_by_seed(self) -> dict[int, list[Row]]:
        return {seed: [{"test_accuracy": each, "final": True}] for seed, each in enumerate(self.accuracies)}


def best_of(*rows: FakeRuns) -> str:
    return Comparison(Path(), (0, 1, 2), list(rows), []).clear_best()


def test_a_comparison_on_pooled_data_reveals_everything(tmp_path: Path) -> None:
    found = compare(["local"], 1, tmp_path / "cmp", SETTINGS | {"partition": "pooled"}, jobs=1)
    assert [row["reveals"] for row in found.table()] == ["everything"]
    (line,) = lines(tmp_path / "cmp" / "table.csv")
    assert (line["black_box"], line["reveals"]) == ("False", "everything")
    assert "<td>no</td><td>nothing</td><td>nothing</td><td>everything</td>" in re.sub(
        r"<td[^>]*>", "<td>", write_report([tmp_path / "cmp"])[0].read_text(encoding="utf-8")
    )
    card = (tmp_path / "cmp/local/seed-0/models").glob("*.json")
    assert {json.loads(file.read_text())["training"]["reveals"] for file in card} == {"everything"}


def test_the_best_is_bold_only_if_it_is_above_every_other_method() -> None:
    low, middle, high = (
        FakeRuns("low", 0.50, 0.52, 0.51),
        FakeRuns("mid", 0.71, 0.7, 0.705),
        FakeRuns("top", 0.9, 0.91, 0.92),
    )
    assert best_of(low, middle, high) == best_of(high, low, middle) == "top"
    assert best_of(low, high, FakeRuns("rival", 0.91, 0.9, 0.915)) == "", "the two best cannot be told apart"
    assert best_of(high) == best_of() == ""
    alone = FakeRuns("a", 0.6, 0.58, 0.65), FakeRuns("b", 0.5, 0.5, 0.5)
    assert best_of(*alone) == "a", "p = 0.034"
    assert best_of(*alone, FakeRuns("c", 0.5, 0.49, 0.5)) == "", "over three pairs, p = 0.1"


def test_a_table_for_a_paper_is_escaped_and_tells_what_it_shows(folder: Path) -> None:
    found = compare(["fedal", "local"], 2, folder, SETTINGS, jobs=1)
    latex, markdown = latex_table(found), markdown_table(found)
    assert latex.count("\\\\\n") == 4 and all(rule in latex for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    assert "fedmd $^{*}$ & " in latex and "$\\pm$" in latex and "±" not in latex
    assert "| fedmd \\* |" in markdown and " ± " in markdown
    for text in (latex, markdown):
        assert "p (Holm)" in text and "steps" in text and "Differences are from fedal" in text
        assert f"{found.differences()['local'].corrected:.3f}" in text
    assert ("Bold" in caption(found)) == bool(found.clear_best()) == ("**" in markdown)


def test_special_characters_survive_in_latex_and_markdown() -> None:
    assert escape_latex(r"a_b & 5% of $x {#1} ~^\ <±–") == (
        r"a\_b \& 5\% of \$x \{\#1\} \textasciitilde{}\textasciicircum{}\textbackslash{} $<$$\pm$--"
    )
    assert escape_markdown("my_pkg.mod:X *<b>`[1]") == r"my\_pkg.mod:X \*\<b>\`\[1\]"
    assert as_latex(["a", "b"], [["1", "2"]], "words").splitlines()[4:10] == [
        r"\begin{tabular}{lc}", r"\toprule", r"a & b \\", r"\midrule", r"1 & 2 \\", r"\bottomrule",
    ]  # fmt: skip


def test_the_command_prints_only_the_table_for_a_paper(folder: Path) -> None:
    words = ["--methods", "local,fedmd", "--seeds", 2, *WORDS, "--out", folder, "--jobs", 1]
    answer = command("compare", *words, "--latex")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("% needs") and answer.out.rstrip().endswith(r"\end{table}")
    answer = command("compare", *words, "--markdown")
    assert answer.code == 0 and answer.out.startswith("| method | test accuracy |")


# objects


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def own_data(shift: float = 0.0) -> Dataset:
    data = load_data("digits")
    return Dataset("mine", data.train_x + np.float32(shift), data.train_y, data.test_x, data.test_y, 10)


def test_objects_are_those_of_a_plain_run_and_a_second_call_resumes(tmp_path: Path) -> None:
    models = {"client-00": small_net()}
    public = own_data().train_x[:100]
    given: dict[str, Any] = {"data": own_data(), "public": public, "models": models}
    found = compare(["fedal", "local"], 2, tmp_path / "cmp", SETTINGS, **given)
    alone = fedal.run(fedal.Config(method="fedal", seed=1, **SETTINGS), tmp_path / "alone", **given)
    assert outcome(alone.path) == outcome(tmp_path / "cmp" / "fedal" / "seed-1")
    assert isinstance(found.rows[0].runs[0].model("client-00"), nn.Sequential)
    (tmp_path / "cmp" / "local" / "seed-1" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "cmp" / "fedal" / "seed-0")
    again = compare(["fedal", "local"], 2, tmp_path / "cmp", SETTINGS, **given)
    assert [len(row.runs) for row in again.rows] == [2, 2]
    for other, naming in (
        ({**given, "data": None}, "with other data passed in Python"),
        ({**given, "data": own_data(0.5)}, "was made for other training data"),
        ({**given, "models": None}, 'client "client-00" has a model passed in Python'),
    ):
        with pytest.raises(ConfigError, match=naming):
            compare(["fedal", "local"], 2, tmp_path / "cmp", SETTINGS, **other)
    with pytest.raises(ConfigError, match="jobs = 2: models passed in Python cannot leave this process"):
        compare(["fedal"], 1, tmp_path / "two", SETTINGS, jobs=2, **given)


def test_models_may_depend_on_the_seed(tmp_path: Path) -> None:
    def all_models(seed: int) -> dict[str, nn.Module]:
        return {f"client-0{n}": small_net(seed) for n in range(3)}

    found = compare(["local"], 2, tmp_path, {**SETTINGS, "lr": 1e-9}, models=all_models)
    weights = [run.model("client-00").state_dict()["1.weight"] for run in found.rows[0].runs]
    assert torch.allclose(weights[1], small_net(1).state_dict()["1.weight"], atol=1e-5)  # type: ignore[operator]
    assert not torch.allclose(weights[0], weights[1], atol=1e-2)


@pytest.mark.processes
def test_data_reach_other_processes(tmp_path: Path) -> None:
    compare(["local", "fedmd"], 1, tmp_path / "two", SETTINGS, data=own_data(), jobs=2)
    compare(["local", "fedmd"], 1, tmp_path / "one", SETTINGS, data=own_data(), jobs=1)
    for run in ("local/seed-0", "fedmd/seed-0"):
        assert outcome(tmp_path / "two" / run) == outcome(tmp_path / "one" / run)


# names


def test_a_method_of_the_user_gets_a_folder_without_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_way.py").write_text(
        "from dataclasses import replace\nfrom fedal import methods\n"
        "METHOD = replace(methods.get('local'), name='mine')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = compare(["my_way:METHOD", "local"], 1, tmp_path / "cmp", SETTINGS, jobs=1)
    assert sorted(path.name for path in (tmp_path / "cmp").iterdir() if path.is_dir()) == ["local", "my_way.METHOD"]
    assert [row.method for row in found.rows] == ["my_way:METHOD", "local"]
    again = compare(["my_way:METHOD"], 2, tmp_path / "cmp", SETTINGS, jobs=1)
    assert [(row.method, len(row.runs)) for row in again.rows] == [("my_way:METHOD", 2), ("local", 1)]


def test_names_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'methods "a\.b:C" and "a:b\.C" would share the folder a\.b\.C'):
        refuse_clashes(tmp_path, ["a.b:C", "a:b.C"])
    with pytest.raises(ConfigError, match="share the folder"):
        refuse_clashes(tmp_path, ["a:METHOD", "A:Method"])
    refuse_clashes(tmp_path, methods.names())
    assert all(method_folder(tmp_path, name).name == name for name in methods.names())
    (tmp_path / "a.b:C").mkdir()  # made by an earlier version
    assert method_folder(tmp_path, "a.b:C") == tmp_path / "a.b:C"


def test_a_frame_without_pandas_says_what_to_install(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedalError, match=r"run.frame\(\) needs pandas. Type: pip install 'fedal\[pandas\]'"):
        fedal.load_run(old / "local" / "seed-0").frame()


@pytest.mark.processes
def test_a_plain_script_compares_without_a_guard(tmp_path: Path) -> None:
    """A worker process that imported the script would start the comparison again, and end in tracebacks."""
    (tmp_path / "script.py").write_text(
        f"import fedal\nprint('once')\nfedal.compare(['local', 'fedmd'], 1, 'cmp', {SETTINGS!r}, jobs=2)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")
    assert (tmp_path / "cmp/table.csv").exists()
