"""The rule for the discriminator's step size, by hand, and in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedal
from fedal.config import Config
from fedal.discriminator import Discriminator
from fedal.engine.loop import Federation
from fedal.records.checkpoint import load_newest, save_checkpoint
from fedal.step_size import FACTOR, RANGE, RATE, Balance
from splits import build_federation, differing_clients, restore, run_rounds, same_bits, state_of

BALANCE = {"discriminator_rule": "balance"}
ROSTER = ("anna", "ben", "cleo", "dora")


def test_seven_exchanges_by_hand() -> None:
    rule = Balance(lr=1e-3, target=0.4)
    rule.update(accuracy=0.25, chance=0.25)  # skill 0, the running mean 0 < 0.08: larger
    assert rule.lr == 1e-3 * FACTOR
    rule.update(accuracy=0.625, chance=0.25)  # skill 0.5, the running mean 0.05 < 0.08: larger
    assert rule.lr == 1e-3 * FACTOR * FACTOR
    rule.update(accuracy=1.0, chance=0.25)  # 0.145: neither
    rule.update(accuracy=1.0, chance=0.25)  # 0.2305: neither
    rule.update(accuracy=1.0, chance=0.25)  # 0.30745: neither
    rule.update(accuracy=1.0, chance=0.25)  # 0.376705: neither
    assert rule.lr == 1e-3 * FACTOR * FACTOR
    assert rule.state_dict()["skill"] == pytest.approx(1 - 0.95 * (1 - RATE) ** 4) == pytest.approx(0.376705)
    rule.update(accuracy=1.0, chance=0.25)  # 0.4390345 > 0.4: smaller
    assert rule.lr == 1e-3 * FACTOR * FACTOR / FACTOR


def test_skill_counts_from_what_guessing_reaches() -> None:
    """Half of the outputs named is skill among ten clients, and chance between two."""
    ten, two = Balance(1.0, 0.2), Balance(1.0, 0.2)
    ten.update(0.5, 1 / 10)
    two.update(0.5, 1 / 2)
    assert ten.lr == 1 / FACTOR and two.lr == FACTOR


def test_a_single_group_has_nothing_to_tell_apart() -> None:
    rule = Balance(1.0, 0.2)
    rule.update(1.0, 1.0)
    assert rule.state_dict() == {"lr": 1.0, "skill": None}


@pytest.mark.parametrize(("accuracy", "bound"), [(0.1, RANGE), (1.0, 1 / RANGE)])
def test_the_step_size_stays_within_its_bounds(accuracy: float, bound: float) -> None:
    rule = Balance(1e-4, 0.2)
    for _ in range(1000):
        rule.update(accuracy, 0.1)
    assert rule.lr == pytest.approx(1e-4 * bound, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("present", [ROSTER, ("ben", "dora")])
def test_the_next_step_has_the_size_that_the_rule_chose(optimizer: Any, present: tuple[str, ...]) -> None:
    """Equal outputs: it guesses, so the second step has FACTOR times the size. A constant one shows which that is."""
    settings: dict[str, Any] = {"hidden": (), "optimizer": optimizer, "dtype": torch.float64}
    f = torch.randn(1, 6, 5, dtype=torch.float64).expand(len(present), 6, 5)
    adapted = Discriminator(ROSTER, 5, lr=0.1, target=0.9, **settings)
    adapted.train_step(f, present)
    assert adapted.lr == 0.1 * FACTOR
    constant = Discriminator(ROSTER, 5, lr=0.1 * FACTOR, **settings)
    constant.load_state_dict(adapted.state_dict())
    for each in (adapted, constant):
        each.train_step(f, present)
    assert same_bits(adapted.module.state_dict(), constant.module.state_dict())


def trained(**options: Any) -> Federation:
    return run_rounds(build_federation("fedal", tau=2, **options), 3)


def test_a_constant_step_size_is_neither_recorded_nor_kept() -> None:
    plain = trained()
    assert "discriminator_lr" not in plain.server.observed
    assert "balance" not in plain.server.state_dict()["discriminator"]
    assert differing_clients(trained(discriminator_rule="constant", discriminator_target=0.9), plain) == []


def test_the_rule_acts_and_is_recorded() -> None:
    adapted = trained(**BALANCE, discriminator_lr=1e-2, discriminator_target=0.9)
    assert adapted.server.observed["discriminator_lr"] == pytest.approx(1e-2 * FACTOR**6)
    assert differing_clients(adapted, trained(discriminator_lr=1e-2))


def test_a_rule_that_never_acts_has_the_bits_of_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedal.step_size.FACTOR", 1.0)
    assert differing_clients(trained(**BALANCE), trained()) == []


def test_a_restored_federation_continues_with_the_same_step_sizes(tmp_path: Path) -> None:
    whole = trained(**BALANCE, discriminator_lr=1e-2)
    save_checkpoint(tmp_path, 1, state_of(whole))
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None

    def resumed(state: Any) -> Federation:
        return run_rounds(
            restore(build_federation("fedal", tau=2, discriminator_lr=1e-2, **BALANCE), state), range(3, 6)
        )

    run_rounds(whole, range(3, 6))
    assert differing_clients(whole, resumed(found[1])) == []
    assert same_bits(whole.server.state_dict(), resumed(found[1]).server.state_dict())
    server: Any = found[1]["server"]
    server["discriminator"]["balance"] = {"lr": 1e-2, "skill": None}
    assert differing_clients(whole, resumed(found[1]))


def test_a_run_records_the_step_size_in_every_row(tmp_path: Path) -> None:
    config = Config(method="fedal", clients=3, iterations=20, eval_every=10, options=BALANCE)
    run = fedal.run(config, tmp_path / "run")
    sizes = [row["discriminator_lr"] for row in run.metrics if row["phase"] == "after_global" and row["round"]]
    assert len(sizes) >= 2 and all(1e-6 <= size <= 1e-2 for size in sizes) and len(set(sizes)) > 1
