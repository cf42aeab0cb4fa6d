"""Benchmarks compare like with like: in every variant, engine and naive loop compute the same."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import against, cohorts, engine_vs_naive, scaling, timed_runs
from benchmarks.__main__ import as_markdown as results_as_markdown
from benchmarks.__main__ import machine
from benchmarks.engine_share import engine_share
from benchmarks.method_cost import LIMIT, method_cost
from benchmarks.operators import REST, TOP, as_markdown, operator_shares
from benchmarks.wifi import point
from benchmarks.workloads import LENET, SMALL, Workload, prepare_both
from benchmarks.worktree import git, worktree

import fedal
from fedal.messages import Outputs
from fedal.records.folder import RunFolder
from fedal.records.rows import Moment, Record, over_clients
from fedal.wire import Wire

FEW_LENETS = dataclasses.replace(LENET, clients=3, tau=2)
WIDE = Workload("WideResNets", "svhn", (3, 16, 16), ("wrn-10-1",), 2, rounds=1, tau=2)


@pytest.mark.parametrize(
    ("workload", "settings"),
    [(FEW_LENETS, {"stacked": True}), (FEW_LENETS, {"stacked": False}), (WIDE, {})],
    ids=["stacked", "single", "batch-norm"],
)
def test_the_engine_and_the_naive_loop_learn_the_same(workload: Workload, settings: dict[str, Any]) -> None:
    with prepare_both(workload, rounds=2, precision="fp64", **settings) as both:
        before = both.difference()
        for _ in range(2):
            both.run_engine()
            both.run_naive()
        assert before == 0
        assert both.difference() < 1e-11
        both.run_engine()
        assert both.difference() > 1e-6  # a real difference would show


def test_a_race_says_whether_a_stack_has_the_bits_of_single_clients() -> None:
    few = dataclasses.replace(SMALL[0], clients=3, rounds=1, tau=2)
    found = engine_vs_naive.benchmark(few, repeats=1)
    assert found["bits_of_single_clients"] == {"fedal": True, "fedal, stacked": False, "fedal, not stacked": True}
    assert found["ratio_to_better_naive"].keys() == found["bits_of_single_clients"].keys()
    table = results_as_markdown({"machine": machine(), few.name: {**found, "fp64_difference": 0.0}})
    rows = [line for line in table.splitlines() if line.startswith(f"| {few.name} | fedal")]
    assert [row.rsplit("|", 2)[1].strip() for row in rows] == ["single", "other", "single"]


def test_a_cohort_of_many_clients_is_compared_with_runs_of_as_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "COHORT", 2)
    monkeypatch.setattr(cohorts, "ROUNDS", 2)
    many, few = cohorts.one_run(3, "auto"), cohorts.one_run(2, False)
    assert min(*many.values(), *few.values()) > 0
    monkeypatch.setattr(cohorts, "RUNS", {"few": (2, False), "stacked": (2, "auto"), "many": (3, "auto")})
    ms = {"few": 8.0, "stacked": 4.0, "many": 10.0}
    table = cohorts.as_markdown({name: {"processor_ms": each, "peak_mb": 500} for name, each in ms.items()})
    assert table[-1] == "| many | 10.0 | 1.25, 2.50 | 500 MB |"


def test_sizes_take_turns_and_their_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = [], iter([1, 10, 9, 20, 2, 90])

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        asked.append(command[1:])
        return SimpleNamespace(stdout=json.dumps({"ms": next(answers)}))

    monkeypatch.setattr(scaling.subprocess, "run", run)
    found = scaling.medians_of_processes("a.module", {"few": ["3"], "many": ["7", "1"]}, repeats=3)
    assert found == {"few": {"ms": 2}, "many": {"ms": 20}}
    assert asked == [["-m", "a.module", "3"], ["-m", "a.module", "7", "1"]] * 3


def test_the_slow_paths_are_measured_against_the_time_before_chains_were_stacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(against, "measure_pairs", lambda before, after, names, pairs: (before, [*names], pairs))
    monkeypatch.setattr(against, "worktree", lambda commit: nullcontext(Path(commit)))
    before, names, pairs = against.slow_paths(3)
    assert (before, pairs) == (Path(against.BEFORE_CHAINS) / "src", 3)
    assert len(names) == 3 and {*names} < {*timed_runs.IN_PROCESS}
    table = results_as_markdown({"machine": machine(), "slow paths": {"one": [(10.0, 9.0), (10.0, 8.0)]}})
    assert "| one | 10.00 | 8.50 | 0.850 |" in table


def test_the_engine_share_is_below_one_half() -> None:
    assert 0 < engine_share(FEW_LENETS, rounds=1) < 0.5


def test_operator_shares_sum_to_one() -> None:
    shares = operator_shares(FEW_LENETS)
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0 <= share < 1 for share in shares.values())
    assert [*shares.values()][:TOP] == sorted([*shares.values()][:TOP], reverse=True)
    assert "convolution_backward" in [*shares][:TOP] and REST in shares
    table = as_markdown({"one": shares, "other": shares})
    assert len({line.count("|") for line in table if line.startswith("|")}) == 1


def test_a_tree_that_is_slower_in_most_pairs_is_named_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {"slower": [(10.0, 11.0), (20.0, 22.0), (10.0, 5.0)], "not": [(10.0, 10.4), (9.0, 30.0), (10.0, 1.0)]}
    monkeypatch.setattr(against, "measure_pairs", lambda *_: measured)
    monkeypatch.setattr(against, "worktree", lambda commit: nullcontext(Path(commit)))
    assert against.main("a-commit", pairs=3) == 1
    printed = capsys.readouterr().out
    assert "| slower | 10.00 | 11.00 | 1.100 |" in printed
    assert "slower than 1.05: slower" in printed and "slower than 1.05: not" not in printed
    del measured["slower"]
    assert against.main("a-commit", pairs=3) == 0


def test_timed_runs_work_in_this_tree(tmp_path: Path) -> None:
    small: dict[str, Any] = dict(method="local", models="mlp-small", clients=3, images=(1, 8, 8))
    assert timed_runs.per_iteration(tmp_path, rounds=100, **small) > 0
    assert isinstance(timed_runs.per_checkpoint(tmp_path, rounds=2, **small), float)
    assert not list(tmp_path.iterdir())  # runs are removed


@pytest.mark.processes
def test_both_trees_are_measured_in_every_pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "measuring.py"
    script.write_text("import sys\nfor n, line in enumerate(sys.stdin, 1): print(n * len(sys.argv[1]), flush=True)")
    monkeypatch.setattr(against, "SCRIPT", script)
    short, long = next(iter(timed_runs.IN_PROCESS)), next(iter(timed_runs.OUT_OF_PROCESS))
    assert against.measure_pairs(Path("a"), Path("aa"), [short, long], pairs=2) == {
        short: [(1.0, 2.0)] * 2,  # the best of three
        long: [(4.0, 8.0)] * 2,
    }
    script.write_text("")
    with pytest.raises(SystemExit, match="exited with"):
        against.measure_pairs(Path("a"), Path("aa"), [short], pairs=1)


@pytest.mark.processes
def test_a_worktree_holds_its_commit_and_is_removed_when_something_fails(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("before")
    git(tmp_path, "add", "file")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "one")
    (tmp_path / "file").write_text("after")
    seen = []
    with pytest.raises(ZeroDivisionError), worktree("HEAD", tmp_path) as folder:  # noqa: PT012
        seen.append((folder / "file").read_text())
        raise ZeroDivisionError
    assert seen == ["before"] and not folder.exists()
    with pytest.raises(SystemExit, match="143"), worktree("HEAD", tmp_path) as folder:
        os.kill(os.getpid(), signal.SIGTERM)
    assert not folder.exists()
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1
    with pytest.raises(SystemExit, match="no-such-commit"), worktree("no-such-commit", tmp_path):
        pass


def test_the_wifi_benchmark_reads_the_rows_that_a_server_writes(tmp_path: Path) -> None:
    wire = Wire((Outputs,), (Outputs,), {"B": 1, "K": 2}, torch.float32)
    wire.up_bytes.update({"a": 3_000_000, "b": 1_000_000})
    measured = over_clients("own_test_accuracy", [0.5, 1.0])
    with closing(Record(RunFolder(tmp_path), {})) as record:
        row = record.write(Moment(2, 10), wire, ["a", "b"], 1.5, measured=measured, extra={}, clients={})
    expected = {"seconds": 1.25, "iteration": 10, "accuracy": 0.75, "megabytes_per_client": 2.0}
    assert point({**row, "elapsed_s": 1.254}, clients=2) == expected


def test_the_cost_of_a_method_is_its_ratio_to_fedmd() -> None:
    few = dict(iterations=2, tau=2, clients=2)
    local, averaged = (method_cost(name, **few) for name in ("local", "fedavg"))
    assert local.stacked and not averaged.stacked and min(local.seconds, local.reference) > 0
    assert f"{local.ratio:.1f} x FedMD" in str(local) and str(local).endswith("stack")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", fedal.methods.MODULES)
def test_no_method_takes_more_than_ten_times_fedmd(name: str) -> None:
    assert method_cost(name).ratio <= LIMIT
