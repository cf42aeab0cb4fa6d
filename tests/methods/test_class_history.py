"""Aggregates with a memory: what each client said about the classes on earlier public batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.errors import ConfigError
from fedal.methods.class_history import ClassHistory, RememberingRule, aligned, covered, debiased, remembering
from fedal.records.checkpoint import load_newest, save_checkpoint
from splits import build_federation, differing_clients, restore, run_rounds, state_of

Space = Literal["logits", "probabilities"]
N, B, K = 3, 40, 4
TEN = 10


def logits() -> torch.Tensor:
    return torch.randn(N, B, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def trained(method: str = "fedmd", **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=2, **options), 2)


def test_the_running_mean_starts_at_the_first_batch_and_absent_clients_keep_theirs() -> None:
    history, first, second = ClassHistory("cpu"), logits(), 2 * logits()
    assert torch.equal(history.with_batch(["a", "b", "c"], first), first.mean(1))
    moved = history.with_batch(["a", "c"], second[[0, 2]])
    assert torch.allclose(moved, 0.98 * first.mean(1)[[0, 2]] + 0.02 * second.mean(1)[[0, 2]])
    assert torch.equal(history.state_dict()["b"], first[1].mean(0))


def test_debiasing_removes_a_preference_that_does_not_depend_on_the_sample() -> None:
    f, preference = logits(), torch.tensor([[3.0, 0, 0, 0], [3, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.float64)
    plain = torch.softmax(debiased(f, f, f.log_softmax(-1).mean(1), 1.0, are_logits=True), -1)
    biased = f + preference[:, None]
    found = torch.softmax(debiased(biased, biased, biased.log_softmax(-1).mean(1), 1.0, are_logits=True), -1)
    assert torch.allclose(plain, found)
    assert not torch.allclose(torch.softmax(biased.mean(0), -1), plain)


@pytest.mark.parametrize("are_logits", [True, False])
def test_coverage_is_the_mean_with_weights_per_client_and_class(are_logits: bool) -> None:
    f = logits()
    log_p = f.log_softmax(-1)
    p = log_p.exp()
    shares = p.mean(1) ** 0.5 / (p.mean(1) ** 0.5).sum(0)
    value = covered(f if are_logits else p, log_p, p.mean(1), 0.5, are_logits=are_logits)
    if are_logits:
        expected = (shares[:, None] * log_p).sum(0)
        assert torch.allclose(value.softmax(-1), expected.softmax(-1))
    else:
        expected = (shares[:, None] * p).sum(0)
        assert torch.allclose(value, expected / expected.sum(-1, keepdim=True))


def test_a_client_that_never_names_a_class_has_no_say_about_it() -> None:
    log_p = torch.tensor([[0.5, 0.5, 0.0]] * B + [[0.2, 0.4, 0.4]] * B, dtype=torch.float64).view(2, B, 3).log()
    value = covered(log_p.exp(), log_p, log_p.exp().mean(1), 1.0, are_logits=False)
    weight = torch.tensor([0.5 / 0.7, 0.5 / 0.9, 0.0], dtype=torch.float64)
    expected = weight * log_p[0].exp() + (1 - weight) * log_p[1].exp()
    assert torch.allclose(value, expected / expected.sum(-1, keepdim=True))


@pytest.mark.parametrize("are_logits", [True, False])
def test_alignment_divides_the_mean_by_how_often_classes_are_named(are_logits: bool) -> None:
    f, shares = logits(), torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]])
    p = f.softmax(-1)
    value = aligned(f if are_logits else p, f.log_softmax(-1), shares.double(), 0.5, are_logits=are_logits)
    divisor = torch.tensor([0.3, 0.3, 0.2, 0.2], dtype=torch.float64) ** 0.5  # the clients' mean shares
    mean = f.mean(0).exp() if are_logits else p.mean(0)
    expected = mean / divisor / (mean / divisor).sum(-1, keepdim=True)
    assert torch.allclose(value.softmax(-1) if are_logits else value, expected)


def test_alignment_hears_the_only_client_that_knows_a_class() -> None:
    """Ten clients, one of which knows the last class: the mean never names it, the aligned mean always does."""
    known = [torch.tensor([[0.88, 0.1, 0.02]] * TEN), torch.tensor([[0.1, 0.88, 0.02]] * TEN)]
    rare = torch.tensor([[0.05, 0.05, 0.9], *[[0.5, 0.48, 0.02]] * (TEN - 1)])
    p = torch.stack([*known[:1] * 5, *known[1:] * 4, rare], 1).double()  # (N, B, K): one sample in ten is rare
    assert p.mean(0).argmax(-1).tolist() == [0] * 5 + [1] * 4 + [0]
    assert aligned(p, p.log(), p.mean(1), 1.0, are_logits=False).argmax(-1).tolist() == [0] * 5 + [1] * 4 + [2]


def test_alignment_leaves_classes_alone_that_are_named_equally_often() -> None:
    p = logits().softmax(-1)
    even = torch.full((N, K), 1 / K, dtype=torch.float64)
    assert torch.allclose(aligned(p, p.log(), even, 1.0, are_logits=False), p.mean(0))


def odds(
    rule: RememberingRule, f: torch.Tensor, space: Space, *, temperature: float = 1.0, sharpness: float | None = None
) -> torch.Tensor:
    """p_0 / p_1 of what the server makes of the first batch of one client, with a strength of 1.  (1, B, 2) -> (B,)"""
    values = f if space == "logits" else (f / temperature).softmax(-1)
    made = remembering(f, values, ["a"], ClassHistory("cpu"), rule, 1.0, temperature, sharpness)
    p = made.softmax(-1) if space == "logits" else made
    return p[:, 0] / p[:, 1]


SPACES: list[Space] = ["logits", "probabilities"]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("debias", [3, 1 / 3]),  # over the odds of the mean logarithm, 9
        ("coverage", [27, 3]),  # a single client has all the weight
        ("align", [27 / 6, 3 / 6]),  # over the odds of the mean: (27/28 + 21/28) : (1/28 + 7/28)
    ],
)
def test_sharpness_is_a_power_of_what_the_rule_makes(
    rule: RememberingRule, expected: list[float], space: Space
) -> None:
    f = torch.tensor([[[27.0, 1], [3, 1]]], dtype=torch.float64).log()
    plain = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(odds(rule, f, space), plain)
    assert torch.allclose(odds(rule, f, space, sharpness=2.0), plain**2)


def test_probabilities_are_remembered_at_the_temperature() -> None:
    """At temperature 2, odds of 9 and 1 are odds of 3 and 1: p = 3/4 and 1/2, with a mean of 5/8."""
    f = torch.tensor([[[9.0, 1], [1, 1]]], dtype=torch.float64).log()
    tempered = torch.tensor([3.0, 1], dtype=torch.float64)
    assert torch.allclose(odds("align", f, "probabilities", temperature=2.0), tempered * 3 / 5)
    assert torch.allclose(odds("debias", f, "probabilities", temperature=2.0), tempered / 3**0.5)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rule", ["debias", "coverage", "align"])
def test_without_strength_it_is_the_mean_of_all_clients_bit_for_bit(rule: str, space: Space) -> None:
    mean = trained(aggregate="trimmed", trim=0.0, space=space)  # the receiving client included
    assert differing_clients(trained(aggregate=rule, class_strength=0.0, space=space), mean) == []
    assert differing_clients(trained(aggregate=rule, space=space), mean)


@pytest.mark.parametrize("method", ["fedmd", "fedmd-lf", "fedal"])
@pytest.mark.parametrize("rule", ["debias", "coverage", "align"])
def test_the_memory_survives_a_checkpoint(method: str, rule: str, tmp_path: Path) -> None:
    def build() -> Federation:
        return build_federation(method, tau=2, aggregate=rule)

    uninterrupted = run_rounds(build(), 2)
    save_checkpoint(tmp_path, 1, state_of(uninterrupted))
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None and found[1]["server"]["history"].keys() == {"anna", "ben", "cleo", "dora"}
    run_rounds(uninterrupted, range(2, 4))
    assert differing_clients(uninterrupted, run_rounds(restore(build(), found[1]), range(2, 4))) == []
    without: dict[str, Any] = {**found[1], "server": {**found[1]["server"], "history": {}}}
    assert differing_clients(uninterrupted, run_rounds(restore(build(), without), range(2, 4)))


def test_methods_without_a_memory_refuse_it() -> None:
    for method in ("mhat", "feddf", "scarlet"):
        with pytest.raises(ConfigError, match="aggregate = 'debias': input should be"):
            Config(method=method, aggregate="debias")
