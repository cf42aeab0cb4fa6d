"""Augmented batches: each change by hand, the same at every party, covered by the digest of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_wine
from torch import Tensor

import fedal
from fedal.config import Config, load_config, parse_assignments
from fedal.data.augment import CHANGES, FARTHEST, Augmentation, flip, misfit, mixup, noise, shift
from fedal.data.split import Task
from fedal.data.streams import PublicData, Samples
from fedal.errors import ConfigError
from fedal.seeding import BatchStream
from fedal.simulate.assemble import assemble
from fedal.simulate.checks import refuse_unfit_task
from splits import InOrder, differing_clients, run_rounds, tiny_split, with_logics


def drawn(*bits: int) -> Any:
    def draws(n: int) -> NDArray[np.uint64]:
        assert n == len(bits)
        return np.array(bits, np.uint64)

    return draws


def test_a_shift_moves_rows_and_columns_and_fills_with_zeros() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    down, left = FARTHEST - 1, FARTHEST + 2  # the draws: 0 is three pixels down or right, six is three up or left
    moved = shift(image, drawn(down, left))
    expected = torch.zeros(4, 4)
    expected[1:, :2] = image[0, 0, :3, 2:]
    assert torch.equal(moved[0, 0], expected)
    assert torch.equal(shift(image, drawn(FARTHEST, FARTHEST)), image)


def test_a_flip_mirrors_the_images_whose_first_bit_is_set() -> None:
    images = torch.arange(8.0).view(2, 1, 2, 2)
    found = flip(images, drawn(2**63, 2**63 - 1))
    assert found[0, 0].tolist() == [[1.0, 0.0], [3.0, 2.0]] and torch.equal(found[1], images[1])


def test_mixup_blends_each_sample_with_another_by_its_share() -> None:
    x = torch.tensor([[0.0, 4.0], [8.0, 8.0]])
    found = mixup(x, drawn(9, 5, 2**63, 3 * 2**62))  # order 1, 0; shares 1/2 and 3/4
    assert found.tolist() == [[4.0, 6.0], [6.0, 7.0]]


def test_noise_is_a_tenth_of_each_features_deviation() -> None:
    x = torch.stack([torch.linspace(-1, 1, 4000), torch.linspace(-100, 100, 4000), torch.ones(4000)], 1).double()
    added = noise(x, lambda n: np.random.Philox(key=1).random_raw(n)) - x
    spread = added.std(0) / x.std(0).clamp(min=1e-9)
    torch.testing.assert_close(spread, torch.tensor([0.1, 0.1, 0.0]).double(), rtol=0.05, atol=0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_a_function_of_seed_owner_and_step(change: Any) -> None:
    x = torch.rand(6, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    one = Augmentation((change,), seed=1)
    assert torch.equal(one(x, 7), Augmentation((change,), seed=1)(x, 7)) and one(x, 7).shape == x.shape
    others = [one(x, 8), Augmentation((change,), seed=2)(x, 7), Augmentation((change,), seed=1, owner="a")(x, 7)]
    assert all(not torch.equal(one(x, 7), other) for other in others)


def test_a_clean_share_and_everything_before_the_start_stay_as_they_are() -> None:
    x = torch.rand(8, 3)
    late = Augmentation(("mixup", "noise"), seed=0, clean=0.5, start=10)
    assert late(x, 9) is x and late.name("abc", 9) == "abc"
    found = late(x, 10)
    assert torch.equal(found[:4], x[:4]) and not (found[4:] == x[4:]).all(1).any()
    assert Augmentation(("mixup",), seed=0, clean=0.99)(x, 0) is x


def public(augmentation: Augmentation | None) -> PublicData:
    x = np.random.default_rng(0).random((40, 1, 8, 8)).astype(np.float32)
    return PublicData(Samples(x, torch.float32), BatchStream(40, 8, 0, "public"), 2, augmentation)


def test_the_digest_of_a_batch_covers_its_changes() -> None:
    plain, same = public(None), public(Augmentation((), 0))
    assert plain.digest(3, 1) == same.digest(3, 1) and torch.equal(plain.batch(3, 1), same.batch(3, 1))
    kinds = [Augmentation(("shift",), 0), Augmentation(("flip",), 0), Augmentation(("shift",), 0, clean=0.5)]
    names = {plain.digest(3, 1), *(public(kind).digest(3, 1) for kind in kinds)}
    assert len(names) == 4
    assert public(kinds[0]).digest(3, 1) == public(kinds[0]).digest(3, 1)


def test_the_digest_of_changes_covers_the_seed_the_owner_and_the_step() -> None:
    def name(step: int = 3, **how: Any) -> str:
        return Augmentation(("shift",), **{"seed": 0, **how}).name("abc", step)

    assert len({"abc", name(), name(seed=1), name(owner="a"), name(4), name(clean=0.5)}) == 6
    assert name() == name()


def test_images_are_shifted_and_tables_are_not() -> None:
    assert misfit(("mixup", "noise"), (12,)) is None and misfit(("shift",), (3, 32, 32)) is None
    assert "shift changes images" in str(misfit(("mixup", "shift"), (12,)))
    config = Config(method="fedmd", clients=3, batch_size=8, public_augment="flip")
    with pytest.raises(ConfigError, match=r"public_augment: flip changes images; .*Use mixup or noise"):
        refuse_unfit_task(config, Task("own", (12,), 3))


def test_tables_are_blended_and_noised_and_a_shift_of_them_is_refused(tmp_path: Path) -> None:
    x, y = load_wine(return_X_y=True)
    data = fedal.data.from_tensors((x - x.mean(0)) / x.std(0), y, name="wine")
    settings: dict[str, Any] = {"method": "fedmd", "clients": 3, "batch_size": 8, "iterations": 30, "eval_every": 15}
    changes = {"public_augment": "mixup,noise", "private_augment": "noise"}
    plain = fedal.run(Config(**settings), tmp_path / "plain", data=data)
    changed = fedal.run(Config(**settings, **changes), tmp_path / "changed", data=data)
    assert changed.final["test_accuracy"] > 0.6 and changed.final["disagreement"] != plain.final["disagreement"]
    for name, usable in (("public_augment", "mixup or noise"), ("private_augment", "noise")):
        with pytest.raises(ConfigError, match=rf"{name}: shift changes images; .*Use {usable}\."):
            fedal.run(Config(**settings, **{name: "shift"}), tmp_path / name, data=data)


@pytest.mark.parametrize("name", ["public_augment", "private_augment"])
def test_none_is_no_change(name: str, tmp_path: Path) -> None:
    files = [tmp_path / "text.toml", tmp_path / "list.toml"]
    for file, value in zip(files, ('"none"', '["none"]'), strict=True):
        file.write_text(f"{name} = {value}\n")
    for config in (*(load_config(file, {}) for file in files), Config(**parse_assignments([f"{name}=none"]))):
        assert getattr(config, name) == () and config == Config()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"method": "cfd", "public_augment": "mixup"}, "cfd keeps what it learnt about each sample"),
        ({"method": "fedgkt", "private_augment": "flip"}, "fedgkt keeps what it learnt about each sample"),
        ({"private_augment": "mixup"}, r"mixup: it blends samples with different labels. Use shift, flip or noise\."),
        ({"private_augment": "none,shift"}, "private_augment.0 = 'none': input should be 'shift'"),
        ({"public_augment": "mixup,mixup"}, "a change is named twice"),
        ({"public_augment": "rotate"}, "public_augment"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Config(**settings)


def federation(stacked: bool, **settings: Any) -> Any:
    config = Config(
        method="fedal",
        clients=4,
        models="mlp-small",
        batch_size=8,
        tau=2,
        stacked=stacked,
        precision="fp64",
        **settings,
    )
    made = assemble(config, tiny_split(config.client_names), InOrder()).federation
    return run_rounds(made if stacked else with_logics(made), 2)


def weights(federation: Any) -> list[Tensor]:
    states = {n: state() for player in federation.players for n, state in player.states().items()}
    return [value for n in sorted(states) for value in states[n]["learner"]["model"].values()]


def test_a_stack_sees_the_batches_of_its_members() -> None:
    changes = {"public_augment": "mixup", "private_augment": "shift,noise"}
    stacked, single = federation(True, **changes), federation(False, **changes)
    for found, expected in zip(weights(stacked), weights(single), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert differing_clients(single, federation(False))


def test_a_resumed_run_continues_with_the_same_changes(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(
        method="fedmd", clients=3, tau=2, batch_size=8, eval_every=4, public_augment="mixup"
    )
    settings |= {"public_augment_start": 3, "public_clean": 0.25}
    whole = fedal.run(Config(**settings, iterations=8), tmp_path / "whole")
    fedal.run(Config(**settings, iterations=4), tmp_path / "parts")
    parts = fedal.resume(tmp_path / "parts", iterations=8)
    plain = fedal.run(Config(**{**settings, "public_augment": ()}, iterations=8), tmp_path / "plain")
    first, second, third = ({k: v for k, v in run.final.items() if k != "seconds"} for run in (whole, parts, plain))
    assert first == second != third
