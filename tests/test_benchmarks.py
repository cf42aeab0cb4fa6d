"""The races are between equals: engine and naive loop compute the same, in every contender's way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from benchmarks.engine_share import engine_share
from benchmarks.operators import REST, TOP, as_markdown, operator_shares
from benchmarks.workloads import LENET, Workload, contest

FEW_LENETS = dataclasses.replace(LENET, clients=3, tau=2)
WIDE = Workload("WideResNets", "svhn", (3, 16, 16), ("wrn-10-1",), 2, rounds=1, tau=2)


@pytest.mark.parametrize(
    ("workload", "settings"),
    [(FEW_LENETS, {"stacked": True}), (FEW_LENETS, {"stacked": False}), (WIDE, {})],
    ids=["stacked", "single", "batch-norm"],
)
def test_the_engine_and_the_naive_loop_learn_the_same(workload: Workload, settings: dict[str, Any]) -> None:
    with contest(workload, rounds=2, precision="fp64", **settings) as both:
        before = both.difference()
        for _ in range(2):
            both.play_engine()
            both.play_naive()
        assert before == 0
        assert both.difference() < 1e-11
        both.play_engine()
        assert both.difference() > 1e-6  # it would be seen


def test_the_engines_share_is_a_share() -> None:
    assert 0 < engine_share(FEW_LENETS, rounds=1) < 0.5


def test_the_shares_of_operators_are_those_of_a_whole() -> None:
    shares = operator_shares(FEW_LENETS)
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0 <= share < 1 for share in shares.values())
    assert [*shares.values()][:TOP] == sorted([*shares.values()][:TOP], reverse=True)
    assert "convolution_backward" in [*shares][:TOP] and REST in shares
    table = as_markdown({"one": shares, "other": shares})
    assert len({line.count("|") for line in table if line.startswith("|")}) == 1
