"""docs/scale.md: its model by hand, and its tables from the committed costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from studies.scale_costs import Costs, _transport, read_costs
from studies.scale_model import World, largest_cohort, server_bytes, server_seconds, simulated
from studies.scale_page import BEGIN, END, PAGE, scale_page

COSTS = Costs(
    machine="a test", client_ms=10.0, transport_ms=0.5,
    server_ms={"fedal": {"10": 1.0, "1000": 10_000.0}, "fedmd": {"10": 1.0, "1000": 100.0}},
    up_bytes=1380, down_bytes=2660, weight_bytes=10**6,
)  # fmt: skip
CALM = World(slower=1.0, speeds=0.0, jitter=0.0, stay_s=1e12, patience=0.0)


def test_the_page_has_the_tables_of_the_committed_costs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == scale_page(read_costs()).strip()


def test_costs_between_and_beyond_what_was_measured() -> None:
    assert COSTS.server("fedal", 10) == pytest.approx(1)
    assert COSTS.server("fedal", 100) == pytest.approx(100)  # quadratic between the two measured ones
    assert COSTS.server("fedal", 2000) == pytest.approx(40_000)
    assert COSTS.server("fedmd", 2000) == pytest.approx(200)


def test_an_iteration_of_equal_clients_by_hand() -> None:
    found = simulated(COSTS, CALM, "fedmd", 1000, tau=2)
    assert found.left == 1.0
    assert found.iteration.clients == pytest.approx(0.010)
    assert found.iteration.server == pytest.approx((1000 * 0.5 + 100) / 1e3)
    assert found.iteration.link == pytest.approx(
        2 * 0.02 + 1000 * 4040 * 8 / 1e9
    )  # the server's link is the slower one
    few = simulated(COSTS, CALM, "fedmd", 10, tau=2).iteration.link
    assert few == pytest.approx(2 * 0.02 + 4040 * 8 / 20e6)


def test_larger_batches_send_more_and_take_longer() -> None:
    assert server_bytes(COSTS, 1, 64) - server_bytes(COSTS, 1, 32) == 3 * 4 * 32 * 10
    assert server_seconds(COSTS, "fedmd", 1000, 64) == pytest.approx((500 + 200) / 1e3)


def test_stragglers_delay_everybody_and_a_deadline_leaves_them_behind() -> None:
    uneven = replace(CALM, speeds=0.5, jitter=0.3)
    few, many = (simulated(COSTS, uneven, "fedmd", n).iteration.clients for n in (10, 1000))
    assert 0.010 < few < many
    patient = simulated(COSTS, uneven, "fedmd", 1000, tau=5)
    hasty = simulated(COSTS, replace(uneven, patience=2.0), "fedmd", 1000, tau=5)
    assert patient.left == 1.0 and 0.5 < hasty.left < 1.0
    assert hasty.iteration.clients < patient.iteration.clients


def test_the_longer_a_round_the_more_clients_leave_it() -> None:
    busy = replace(CALM, stay_s=10.0)
    left = [simulated(COSTS, busy, "fedmd", 1000, tau).left for tau in (1, 5, 20)]
    assert left[0] > left[1] > left[2] > 0


def test_a_cohort_that_has_left_costs_no_more() -> None:
    gone = simulated(COSTS, replace(CALM, stay_s=1e-6), "fedmd", 10, tau=5)
    assert gone.left == 0.0 and gone.iteration.clients == pytest.approx(0.010 / 5)


def test_the_largest_cohort_is_the_last_that_fits() -> None:
    most = largest_cohort(COSTS, "fedmd", 0.5)
    assert server_seconds(COSTS, "fedmd", most) <= 0.5 < server_seconds(COSTS, "fedmd", most + 1)


def test_transport_is_that_of_the_table_of_deployed_exchanges() -> None:
    page = (Path(PAGE).parent / "deployment.md").read_text(encoding="utf-8")
    assert 0.01 < _transport(page) < 10
