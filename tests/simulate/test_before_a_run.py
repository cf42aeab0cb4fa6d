"""`fedal partition --preview` and `fedal plan` preview the data split and the cost of a run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedal
from fedal.cli.app import app
from fedal.config import Config
from fedal.data.partition import effective_classes
from fedal.figures.bubbles import draw_bubbles
from fedal.simulate.estimate import estimate
from fedal.simulate.prepare import prepare_split


def test_the_preview_shows_the_split_that_the_run_will_use(tmp_path: Path) -> None:
    flags = ["--clients", "4", "--alpha", "0.7", "--seed", "3"]
    result = CliRunner().invoke(app, ["partition", "--preview", *flags, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    counts = prepare_split(Config(clients=4, alpha=0.7, seed=3)).class_counts()
    shown = [
        [0 if cell == "·" else int(cell.replace(",", "")) for cell in line.split()[1:11]]
        for line in result.output.splitlines()
        if line.strip().startswith("client-")
    ]
    assert np.array_equal(shown, counts)
    assert "public samples: 300; unassigned training samples: 0" in result.output
    effective = effective_classes(counts)
    assert 1 < effective < 10 and f"dirichlet, alpha 0.7, {effective:.2f} effective classes per client" in result.output
    assert (tmp_path / "partition.svg").stat().st_size > 1000 and (tmp_path / "partition.png").stat().st_size > 1000


def test_the_preview_counts_what_stays_unassigned(tmp_path: Path) -> None:
    flags = ["--clients", "4", "--partition", "dirichlet-client", "--seed", "3"]
    result = CliRunner().invoke(app, ["partition", *flags, "--out", str(tmp_path)])
    split = prepare_split(Config(clients=4, partition="dirichlet-client", seed=3))
    assert split.leftovers == 1137 - split.class_counts().sum() > 0
    assert f"unassigned training samples: {split.leftovers}" in result.output


def test_the_preview_names_the_rarest_class_and_warns_if_hardly_any_client_has_it(tmp_path: Path) -> None:
    flags = ["--partition", "dirichlet-client-k", "--alpha", "1", "--out", str(tmp_path)]
    common, rare = (CliRunner().invoke(app, ["partition", *flags, "--seed", seed]) for seed in ("6", "8"))
    assert "rarest: class " in common.output and "warning" not in common.output
    totals = prepare_split(Config(partition="dirichlet-client-k", alpha=1, seed=8)).class_counts().sum(0)
    few = f"class {totals.argmin()} has {totals.min()} of the {totals.sum()} samples that clients own"
    assert f"rarest: {few}, at " in rare.output and f"warning: {few}, less than 1%" in rare.output


def test_an_impossible_partition_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["partition", "--clients", "4000", "--out", str(tmp_path)])
    assert isinstance(result.exception, fedal.FedalError)
    assert not any(tmp_path.iterdir())


def test_the_area_of_a_bubble_is_its_number_of_samples() -> None:
    counts = np.array([[10, 0], [40, 20]])
    figure = draw_bubbles(counts, ["a", "b"], ["0", "1"], "")
    sizes = figure.axes[0].collections[0].get_sizes()
    assert (sizes / sizes.max()).tolist() == pytest.approx([0.25, 1.0, 0.5])


@pytest.mark.parametrize("method", ["fedal", "fedmd", "local", "fedavg"])
def test_planned_bytes_are_those_of_the_run(method: str, tmp_path: Path) -> None:
    config = Config(method=method, clients=3, models="mlp-small", rounds=6, alpha=5.0, eval_every=30)
    found = estimate(config, trial_s=0)
    assert found.trials == 3 < config.total_rounds
    final = fedal.run(config, tmp_path / "run").final
    assert (found.up_bytes, found.down_bytes) == (final["up_bytes"], final["down_bytes"])


def test_a_plan_accounts_for_the_models_and_times_every_part() -> None:
    config = Config(clients=3, models="mlp-small", iterations=100, eval_every=20, alpha=5.0, instruments=("zeta",))
    found = estimate(config, trial_s=0)
    weights = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert found.memory["models"] == 3 * weights
    assert found.memory["optimizers"] == pytest.approx(2 * 3 * weights, rel=0.01)  # two moments per weight
    assert found.memory["anchors"] == 3 * weights
    assert found.peak_bytes > sum(found.memory.values())
    assert found.evaluations == 11 and found.recorded_rounds == 5
    fast, typical, slow = found.round_s
    assert 0 < fast <= typical <= slow
    assert found.seconds(fast) <= found.seconds() <= found.seconds(slow)
    assert found.seconds() > 20 * typical


def test_a_plan_prints_a_table_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text('method = "fedmd"\nclients = 3\nmodels = "mlp-small"\nalpha = 5.0\n')
    result = CliRunner().invoke(app, ["plan", "small.toml", "--rounds", "50", "--set", "tau=2", "--trial", "0"])
    assert result.exit_code == 0, result.output
    assert "fedmd on digits, 3 clients, 100 iterations (50 rounds of 2)" in result.output
    assert re.search(r"sent up\s+0\.38 MB", result.output), result.output  # 50 * 2 * 3 * 32 * 10 * 4 bytes
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]
