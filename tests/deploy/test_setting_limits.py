"""Limits on what a site accepts from a server: generous for every method, and refused beyond."""

from __future__ import annotations

import json

import pytest

from deployments import pb
from fedal import methods
from fedal.config import Config
from fedal.config.limits import LIMITS, beyond_limits
from fedal.deploy.entering import checked_settings, refuse_beyond_limits
from fedal.deploy.refusals import Code, Refused

BEYOND = {
    "tau": 10**9, "batch_size": 10**9, "seed": 10**1000, "lr": 1e30, "temperature": 1e-30, "distillation": 1e300,
    "discriminator_hidden": [10**9], "weight_decay": 1e300, "discriminator_lr": 1e5, "replay": 10**5,
}  # fmt: skip


@pytest.mark.parametrize("name", methods.names())
def test_the_defaults_and_the_paper_s_values_of_every_method_are_within_the_limits(name: str) -> None:
    for values in ({}, methods.get(name).paper_options):
        assert beyond_limits(Config(method=name, **values), n_classes=100, rounds=10_000) == []


@pytest.mark.parametrize("name", BEYOND)
def test_a_site_refuses_a_setting_beyond_its_limits(name: str) -> None:
    told = Config(**{name: BEYOND[name]}).for_sites()
    welcome = pb.Welcome(settings=json.dumps(told), n_classes=10, total_rounds=10)
    with pytest.raises(Refused, match=f"{name} = .+; expected .+ to ") as refused:
        refuse_beyond_limits(checked_settings(welcome.settings), welcome)
    assert refused.value.code == Code.SETTINGS
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(("n_classes", "rounds"), [(1, 10), (2**32 - 1, 10), (10, 0), (10, 2**64 - 1)])
def test_a_site_refuses_a_task_beyond_its_limits(n_classes: int, rounds: int) -> None:
    with pytest.raises(Refused, match=r"n_classes|rounds"):
        refuse_beyond_limits(Config(), pb.Welcome(n_classes=n_classes, total_rounds=rounds))


def test_the_ends_of_a_range_are_within_it() -> None:
    low, high = LIMITS["tau"]
    for tau, count in ((low, 0), (high, 0), (high + 1, 1)):
        assert len(beyond_limits(Config(tau=int(tau)), 10, 10)) == count


def test_a_list_has_a_limited_length() -> None:
    (problem,) = beyond_limits(Config(discriminator_hidden=[8] * 1000), 10, 10)
    assert problem == "discriminator_hidden has 1000 entries; expected at most 64"
