"""Rules that combine the outputs of all clients: hand cases, limits, and what one bad client can do."""

from __future__ import annotations

from itertools import permutations
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fedal import methods
from fedal.aggregate import RULES, Rule, Space, average_weights, combined, geometric_median, mean_over_clients, median
from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.errors import ConfigError, NotApplicableError
from fedal.losses import kl, kl_by_certainty, kl_to_probs
from fedal.messages import Consensus, Guidance, GuidedOutputs, GuidedTeacher, Message, Outputs, Teacher
from fedal.methods.class_history import ClassHistory
from fedal.methods.consensus import ConsensusOptions, divergence, teaching
from fedal.simulate.checks import refuse_unfit_task
from fedal.weighting import SharpRule
from splits import build_federation, differing_clients, mlp, run_rounds, tiny_split

ALL: tuple[Rule, ...] = get_args(Rule)
MEANS = tuple(rule for rule in ALL if rule not in get_args(SharpRule))  # of equal values: that value
SPACES: tuple[Space, ...] = get_args(Space)


def values(n_clients: int, space: Space, seed: int = 0) -> Tensor:
    f = 3 * torch.randn(n_clients, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return f if space == "logits" else torch.softmax(f, -1)


def column(*numbers: float) -> Tensor:
    """One number per client.  -> (N, 1, 1)"""
    return torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1)


# each rule


@pytest.mark.parametrize(
    ("numbers", "middle"), [((4.0, 1.0, 9.0), 4.0), ((4.0, 1.0, 9.0, 2.0), 3.0), ((1.0, 5.0), 3.0)]
)
def test_the_median_is_the_middle_number_or_between_the_two(numbers: tuple[float, ...], middle: float) -> None:
    assert median(column(*numbers)).item() == middle


@pytest.mark.parametrize(
    ("trim", "numbers", "expected"),
    [
        (0.2, (1.0, 2.0, 6.0, 7.0, 100.0), 5.0),  # floor(0.2 * 5) = 1 at each end
        (0.2, (1.0, 2.0, 6.0, 7.0), 4.0),  # floor(0.8) = 0: the mean
        (0.4, (1.0, 2.0, 6.0, 7.0, 100.0), 6.0),
        (0.49, (1.0, 5.0), 3.0),  # never all
        (0.29, (0.0,) * 29 + (1.0,) * 42 + (50.0,) * 29, 1.0),  # 0.29 * 100 < 29 in floating point
    ],
)
def test_a_trimmed_mean_drops_the_floor_of_trim_times_n_at_each_end(
    trim: float, numbers: tuple[float, ...], expected: float
) -> None:
    assert RULES["trimmed"](column(*numbers), trim).item() == pytest.approx(expected, abs=1e-12)


def test_the_geometric_median_of_a_triangle_sees_its_corners_at_equal_angles() -> None:
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    point = geometric_median(corners[:, None])[0]
    directions = (corners - point) / (corners - point).norm(dim=-1, keepdim=True)
    torch.testing.assert_close(directions.sum(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-4)


def test_the_geometric_median_is_the_point_that_most_clients_share() -> None:
    f = values(5, "logits")
    f[1] = f[3] = f[0]
    torch.testing.assert_close(geometric_median(f), f[0], rtol=0, atol=1e-5)
    assert (mean_over_clients(f) - f[0]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("trim", "numbers", "expected"),
    [
        (0.2, (0.0, 1.0, 2.0, 3.0, 100.0), 1.5),  # squared distances to two neighbours: 5, 2, 2, 5, far
        (0.2, (0.0, 1.0, 2.0, 3.0), 1.5),  # floor(0.8) = 0: the mean
        (0.4, (0.0, 1.0, 2.0, 3.0, 100.0), 1.5),  # never more than (5 - 3) / 2
        (0.3, (0.0, 1.0, 3.0, 4.0, 5.0, 90.0, 90.0), 2.6),  # three neighbours: two that agree are still far
    ],
)
def test_multi_krum_drops_the_clients_far_from_their_neighbours(
    trim: float, numbers: tuple[float, ...], expected: float
) -> None:
    assert RULES["multi-krum"](column(*numbers), trim).item() == pytest.approx(expected, abs=1e-12)


def test_multi_krum_keeps_nothing_of_a_client_that_lies_in_some_samples() -> None:
    f = values(10, "probabilities") * 0.01 + 1 / 3
    honest = f[:8].clone()
    f[8:, ::2] = torch.tensor([1.0, 0.0, 0.0])
    assert torch.equal(RULES["multi-krum"](f, 0.2), honest.mean(0))


def test_without_a_majority_for_any_class_votes_count_as_their_mean() -> None:
    votes = torch.eye(5, dtype=torch.float64)[:, None]  # five clients, five classes
    for rule in ("median", "trimmed"):
        assert combined(votes, rule, "probabilities", 0.2).tolist() == [[0.2] * 5]


# all rules


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rule", ALL)
def test_the_order_of_clients_does_not_matter(rule: Rule, space: Space) -> None:
    f = values(4, space)
    first = combined(f, rule, space, 0.25)
    for order in permutations(range(4)):
        torch.testing.assert_close(combined(f[list(order)], rule, space, 0.25), first, rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("n_clients", [1, 2, 5, 6])
@pytest.mark.parametrize("rule", MEANS)
def test_equal_uploads_come_back(rule: Rule, n_clients: int, space: Space) -> None:
    own = values(1, space).float()
    value = combined(own.expand(n_clients, -1, -1), rule, space, 0.2)
    torch.testing.assert_close(value, own[0], rtol=0, atol=1e-6)
    if n_clients == 1 or rule in ("median", "geometric-median"):
        assert torch.equal(value, own[0])


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rule", ["trimmed", "multi-krum"])
def test_a_rule_that_drops_none_is_the_mean_bit_for_bit(rule: Rule, space: Space) -> None:
    f = values(7, space)
    assert torch.equal(combined(f, rule, space, 0.0), mean_over_clients(f))


@pytest.mark.parametrize("rule", ALL)
def test_combined_probabilities_are_distributions(rule: Rule) -> None:
    value = combined(values(6, "probabilities"), rule, "probabilities", 0.2)
    assert Teacher(value).misfit() is None
    assert value.min() >= 0


@pytest.mark.parametrize("far", [1e6, -1e6])
@pytest.mark.parametrize("attacker", range(5))
def test_one_attacker_of_five_stays_within_the_honest_range(attacker: int, far: float) -> None:
    f = values(5, "logits")
    honest = torch.cat([f[:attacker], f[attacker + 1 :]])
    f[attacker] = far
    for rule in ("median", "trimmed"):
        value = combined(f, rule, "logits", 0.2)
        assert (honest.amin(0) <= value).all() and (value <= honest.amax(0)).all()
    apart = (combined(f, "geometric-median", "logits", 0.2) - honest.mean(0)).norm(dim=-1)
    assert (apart <= 2 * (honest - honest.mean(0)).norm(dim=-1).amax(0)).all()
    assert combined(f, "mean", "logits", 0.2).abs().min() > 1e5


def test_a_share_of_attackers_moves_mean_probabilities_by_no_more_than_their_share() -> None:
    f = values(5, "probabilities")
    before = combined(f, "mean", "probabilities", 0.0)
    f[4] = torch.eye(3, dtype=torch.float64)[0]
    moved = (combined(f, "mean", "probabilities", 0.0) - before).abs().sum(-1) / 2
    assert moved.max() <= 1 / 5


# weights


def test_weights_are_combined_number_by_number_and_counters_come_from_the_largest() -> None:
    members = [{"w": torch.tensor([w, -w]), "steps": torch.tensor(s)} for w, s in ((1.0, 5), (2.0, 6), (1e6, 7))]
    middle = average_weights(members, [1, 9, 1], "median")
    assert middle["w"].tolist() == [2.0, -2.0] and middle["steps"] == 6
    assert average_weights(members, [1, 9, 1], "trimmed", 0.34)["w"].tolist() == [2.0, -2.0]
    assert average_weights(members[:1], [1], "median") == members[0]


def test_with_two_members_of_equal_weight_the_median_of_weights_is_the_mean() -> None:
    two, options = {"anna": mlp, "ben": mlp}, {"tau": 1, "weighting": "uniform"}
    mean, middle = (
        run_rounds(build_federation("fedavg", nets=two, aggregate=rule, **options), 2) for rule in ("mean", "median")
    )
    assert differing_clients(mean, middle) == []


# in the methods


def test_only_a_mean_of_logits_can_be_taken_apart() -> None:
    f = values(3, "logits")
    options: dict[str, Any] = {"temperature": 2.0}

    def taught_with(**aggregate: Any) -> Message:
        return teaching(f, ConsensusOptions(**aggregate, **options), ["anna", "ben", "cleo"], ClassHistory("cpu"))

    assert isinstance(taught_with(), Consensus)
    assert type(taught_with(aggregate="median")) is Outputs
    taught = taught_with(space="probabilities")
    assert isinstance(taught, Teacher)
    torch.testing.assert_close(taught.values, torch.softmax(f / 2, -1).mean(0), rtol=0, atol=1e-15)


def test_what_was_taught_is_learnt_as_it_is() -> None:
    f, grad = values(3, "logits"), torch.zeros(4, 3, dtype=torch.float64)
    probabilities = values(1, "probabilities", seed=1)[0]
    for down in (Teacher(probabilities), GuidedTeacher(probabilities, grad)):
        assert torch.equal(divergence(down, f[0], 2.0).gradient, kl_to_probs(probabilities, f[0], 2.0).gradient)
    for down in (Outputs(f[1]), GuidedOutputs(f[1], grad)):
        assert torch.equal(divergence(down, f[0], 2.0).gradient, kl(f[1], f[0], 2.0).gradient)
    for down in (Consensus(f[:2].mean(0), 2), Guidance(f[:2].mean(0), grad, 2)):
        torch.testing.assert_close(divergence(down, f[0], 2.0).gradient, kl(f[1], f[0], 2.0).gradient)


def test_what_was_taught_is_learnt_by_its_certainty() -> None:
    f, probabilities = values(3, "logits"), values(1, "probabilities", seed=1)[0]
    learnt = divergence(Teacher(probabilities), f[0], 2.0, 1.0)
    assert torch.equal(learnt.gradient, kl_by_certainty(probabilities, f[0], 1.0, 2.0).gradient)
    others = torch.softmax(f[1] / 2, -1)
    for down in (Outputs(f[1]), Consensus(f[:2].mean(0), 2)):
        expected = kl_by_certainty(others, f[0], 1.0, 2.0).gradient
        torch.testing.assert_close(divergence(down, f[0], 2.0, 1.0).gradient, expected)


def trained(method: str, **options: Any) -> Federation:
    return run_rounds(build_federation(method, tau=2, **options), 2)


@pytest.mark.parametrize("method", ["fedmd", "fedmd-lf", "fedal", "mhat", "feddf", "feddf-al", "fccl"])
def test_every_rule_trains_and_every_rule_differs(method: str) -> None:
    offered = get_args(methods.get(method).options.model_fields["aggregate"].annotation)
    offered = offered if method == "fedmd" else offered[:4]
    spaces = get_args(methods.get(method).options.model_fields["space"].annotation)
    extra = {"pretrain_iterations": 0} if method == "fccl" else {}
    runs = [trained(method, aggregate=rule, space=space, trim=0.34, **extra) for space in spaces for rule in offered]
    assert len(offered) >= 3
    for index, first in enumerate(runs):
        for second in runs[index + 1 :]:
            # Of four clients, one at each end is dropped: the median. Multi-Krum drops none below five.
            same = [{"median", "trimmed"}, {"mean", "multi-krum"}]
            if {first.server.hp.aggregate, second.server.hp.aggregate} in same:
                continue
            assert differing_clients(first, second), (first.server.hp, second.server.hp)


def test_fedal_without_the_adversary_is_fedmd_lf_with_every_rule() -> None:
    for options in ({"aggregate": "median"}, {"aggregate": "trimmed", "space": "probabilities"}):
        assert differing_clients(trained("fedal", adversarial=0.0, **options), trained("fedmd-lf", **options)) == []


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("fedmd", {"distance": "l1", "space": "probabilities"}, "distance = l1 compares logits"),
        ("fccl", {"aggregate": "median", "self_target": "exclude"}, "self_target = exclude takes a mean apart"),
    ],
)
def test_options_that_contradict_each_other_are_refused(method: str, options: dict[str, Any], reason: str) -> None:
    config = Config(method=method, **options)
    with pytest.raises(NotApplicableError, match=reason):
        refuse_unfit_task(config, tiny_split(config.client_names).task)


@pytest.mark.parametrize("options", [{"aggregate": "best"}, {"space": "odds"}, {"trim": 0.5}, {"sharpness": -1}])
def test_unknown_rules_and_impossible_shares_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Config(method="fedmd", **options)
