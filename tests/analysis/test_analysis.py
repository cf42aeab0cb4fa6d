"""Instruments during a run, and the analysis of a run folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fedal
from fedal.analysis.analyse import Analysis, analyse
from fedal.cli.app import app
from fedal.config import Config
from fedal.errors import ConfigError
from fedal.figures.theory import FIGURES, draw_convergence, draw_forgetting, draw_variances
from fedal.records.run import Run
from fedal.simulate.assemble import assemble
from fedal.simulate.prepare import prepare_split
from fedal.theory.descent import Gradients
from fedal.theory.instruments import SERVER, Forgetting
from fedal.theory.view import FederationView
from splits import InOrder, tiny_split

ALL = ("forgetting", "zeta", "gradients")


def settings(method: str, **changes: Any) -> Config:
    base = dict(method=method, clients=3, models="mlp-small", iterations=20, eval_every=10, alpha=5.0, public_size=64)
    return Config(**{**base, **changes})


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedal.run(settings("fedal", instruments=ALL), tmp_path_factory.mktemp("runs") / "watched")


@pytest.fixture(scope="module")
def study(watched: Run) -> Analysis:
    return analyse(watched, reference_steps=20)


def test_instruments_change_no_bit_of_the_models(watched: Run, tmp_path: Path) -> None:
    plain = fedal.run(settings("fedal"), tmp_path / "plain")
    for client in plain.config.client_names:
        assert (plain.folder.models / f"{client}.safetensors").read_bytes() == (
            watched.folder.models / f"{client}.safetensors"
        ).read_bytes()
    for mine, other in zip(plain.metrics, watched.metrics, strict=True):
        assert {key: other[key] for key in mine if key != "seconds"} == {
            k: v for k, v in mine.items() if k != "seconds"
        }


def test_instruments_fill_columns_of_every_recorded_round(watched: Run) -> None:
    columns = {"zeta", "client_gradient", "global_before_local", "own_after_transfer"}
    columns |= {f"variance_{name}" for name in ("l", "k", "u", "rl", "rg", "n")}
    rows = [row for row in watched.metrics if row["phase"] == "after_global" and not row["final"]]
    assert [row["iteration"] for row in rows] == [0, 10, 20]
    for row in rows[1:]:
        assert columns | {"discriminator_gradient"} <= row.keys()
        each = [r for r in watched.client_metrics if r["round"] == row["round"] and "zeta" in r]
        assert len(each) == 3 and all(columns <= r.keys() for r in each)
        assert row["zeta"] == pytest.approx(sum(r["zeta"] for r in each) / 3)


def test_an_unknown_instrument_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"instruments.*forgetting"):
        Config(instruments="forgeting")


def test_instruments_can_be_comma_separated() -> None:
    assert Config(instruments="zeta, gradients").instruments == ("zeta", "gradients")


# the analysis of a folder


def test_zeta_of_an_analysis_is_that_of_the_saved_models(watched: Run, study: Analysis) -> None:
    public = torch.as_tensor(prepare_split(watched.config).public_x)
    with torch.no_grad():
        p = torch.stack([torch.softmax(watched.model(client)(public), -1) for client in watched.config.client_names])
    divergence = (p * (p / p.mean(0)).log()).sum(-1).mean(-1)
    assert [study.terms[client].zeta for client in study.clients] == pytest.approx(divergence.tolist(), rel=1e-4)


def test_the_measured_losses_are_those_of_the_saved_models(watched: Run, study: Analysis) -> None:
    split = prepare_split(watched.config)
    data = split.dataset
    models = {client: watched.model(client) for client in watched.config.client_names}

    def loss(model: nn.Module, x: np.ndarray, y: np.ndarray) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y)))

    everywhere = [loss(model, data.test_x, data.test_y) for model in models.values()]
    assert study.global_loss == pytest.approx(np.mean(everywhere), rel=1e-4)
    for client, mine in split.clients.items():
        own = loss(models[client], data.train_x[mine], data.train_y[mine])
        assert study.terms[client].risk == pytest.approx(own, rel=1e-4)


def test_an_analysis_changes_nothing_in_the_run_but_its_own_folder(watched: Run) -> None:
    def others() -> dict[str, bytes]:
        files = [path for path in watched.path.rglob("*") if path.is_file() and "analysis" not in path.parts]
        return {str(path): path.read_bytes() for path in files}

    before = others()
    found = analyse(watched, reference_steps=0)
    found.write()
    assert others() == before
    assert found.bounds["FedAL"].joint_loss is None
    assert any("lambda_n" in note for note in found.notes)


def test_a_method_has_the_variances_of_its_own_terms_only(tmp_path: Path) -> None:
    found = analyse(fedal.run(settings("fedmd"), tmp_path / "fedmd"), reference_steps=0)
    assert set(found.variances) == {"l", "k"}
    assert found.equilibrium.discriminator is None
    assert not any(found.convergence.discriminator)
    assert any("instruments" in note for note in found.notes)
    assert draw_convergence(found) is None, "one round makes no curve"


def test_another_kind_of_distillation_is_not_measured_as_the_papers() -> None:
    rows = Stage("perfed-ckt").measured(Gradients)
    assert all("variance_k" not in row and "client_gradient" not in row for row in rows.values())
    assert all("variance_l" in row for row in rows.values())


def test_local_only_training_can_be_analysed(tmp_path: Path) -> None:
    found = analyse(fedal.run(settings("local"), tmp_path / "local"), reference_steps=0)
    assert set(found.variances) == {"l"}
    assert found.forgetting["own_before_transfer"] == found.forgetting["own_after_transfer"]


# the instruments themselves


class Stage:
    """A tiny federation with an instrument; keeps copies of the models after local training."""

    def __init__(self, method: str = "fedal", batch: int = 8, **options: Any) -> None:
        config = Config(
            method=method, clients=3, models="mlp-small", batch_size=8, lr=0.05, precision="fp64", **options
        )
        self.half: dict[str, nn.Module] = {}
        self.instrument: Any = None
        split = tiny_split(config.client_names)
        assembly = assemble(config, split, InOrder())
        self.federation, learners = assembly.federation, assembly.learners
        self.federation.watch.phase_done = self._trained
        self.view = FederationView(config.with_(batch_size=batch), split, self.federation, learners, InOrder())

    def modules(self) -> dict[str, nn.Module]:
        return {client: copy.deepcopy(learner.module) for client, learner in self.view.learners.items()}

    def _trained(self, client: str, phase: str) -> None:
        self.half[client] = self.modules()[client]
        if self.instrument:
            self.instrument.trained(client)

    def measured(self, instrument: type[Any], t: int = 0) -> dict[str, dict[str, float]]:
        """The measurements of an instrument in round t."""
        self.instrument = instrument(self.view)
        self.instrument.begins()
        self.federation.run_round(t)
        return self.instrument.ends()


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    p = torch.softmax(teacher, -1).detach()
    return (p * (p.log() - torch.log_softmax(student, -1))).sum(-1).mean()


def test_the_clients_gradient_equals_autograd_of_the_papers_objective() -> None:
    stage = Stage(adversarial=3.0, keep_global=0.5, discriminator_lr=0.01)
    stage.federation.run_round(0)
    place, start = stage.view, stage.modules()
    discriminator = copy.deepcopy(place.discriminator.module)
    measured = stage.measured(Gradients, 1)

    outputs = torch.stack([start[client](place.public) for client in place.clients])
    identification = []
    for n, client in enumerate(place.clients):
        x, y = place.private[client]
        f = start[client](place.public)
        others = (outputs.sum(0) - outputs[n]) / 2
        h = discriminator(torch.softmax(f / 2, -1))
        utility = -nn.functional.cross_entropy(h, torch.full((len(h),), n))
        identification.append(utility)
        objective = nn.functional.cross_entropy(start[client](x), y) + kl(others, f) + 3 * utility
        objective = objective + 0.5 * kl(stage.half[client](place.public), f)
        grads = torch.autograd.grad(objective, list(start[client].parameters()), retain_graph=True)
        expected = sum(float(g.square().sum()) for g in grads)
        assert measured[client]["client_gradient"] == pytest.approx(expected, rel=1e-9)
    grads = torch.autograd.grad(torch.stack(identification).mean(), list(discriminator.parameters()))
    expected = sum(float(g.square().sum()) for g in grads)
    assert measured[SERVER]["discriminator_gradient"] == pytest.approx(expected, rel=1e-9)


def test_with_batches_as_large_as_the_data_every_variance_is_zero() -> None:
    stage = Stage(batch=64, discriminator_lr=0.01)
    rows, place = stage.measured(Gradients), stage.view
    found = {name: value for client in place.clients for name, value in rows[client].items() if "variance" in name}
    assert set(found) == {f"variance_{name}" for name in ("l", "k", "u", "rl", "rg", "n")}
    assert list(found.values()) == pytest.approx([0.0] * 6, abs=1e-20)


def test_forgetting_measures_what_a_client_unlearns() -> None:
    """A client whose weights are spoiled while it trains forgets; an unchanged one does not."""
    stage = Stage("local")
    place, instrument = stage.view, Forgetting(stage.view)
    for t in range(8):
        stage.federation.run_round(t)
    instrument.begins()
    spoiled, kept, _ = place.clients
    learner = place.learners[spoiled]
    weights = learner.weights()
    learner.load_weights({name: -value for name, value in weights.items()})
    instrument.trained(spoiled)
    learner.load_weights(weights)
    instrument.trained(kept)
    rows = instrument.ends()
    assert rows[spoiled]["own_after_transfer"] > rows[spoiled]["own_before_transfer"] + 0.2
    assert rows[spoiled]["global_after_local"] != rows[spoiled]["global_before_local"]
    assert rows[kept]["global_after_local"] == rows[kept]["global_before_local"]
    assert len(rows) == 2, "a client that did not train is not measured"


# the command


def test_analyse_writes_a_table_a_document_and_figures(watched: Run) -> None:
    result = CliRunner().invoke(app, ["analyse", str(watched.path), "--reference-steps", "0"])
    assert result.exit_code == 0, result.output
    assert "fedal, seed 0" in result.output and "FedMD's bound" in result.output and "equilibrium" in result.output
    folder = watched.path / "analysis"
    document = json.loads((folder / "analysis.json").read_text())
    assert document["method"] == "fedal" and document["rounds"] == 4
    assert set(document["gradient_variances"]) == {"l", "k", "u", "rl", "rg", "n"}
    assert document["convergence"]["rounds"] == [2, 4]
    assert document["bound"]["FedAL"]["total"] > document["bound"]["FedAL"]["risk"]
    figures = {"zeta", "bounds", "variances", "convergence", "equilibrium", "forgetting"}
    for name in [f"{figure}.{kind}" for figure in figures for kind in ("png", "svg")]:
        assert (folder / name).stat().st_size > 1000, name


def test_every_legend_is_inside_its_figure(study: Analysis) -> None:
    shown = 0
    for draw in FIGURES.values():
        figure = draw(study)
        figure.canvas.draw()
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.width, "no word is cut off"
            shown += 1
    assert shown == 4


def test_a_fallen_variance_is_shown_from_its_first_value() -> None:
    rows = [{"iteration": iteration, "variance_l": value} for iteration, value in ((10, 900.0), (20, 1.0))]
    recorded: Any = SimpleNamespace(variances={"l": {"anna": 1.0, "ben": 1.2}}, rows=lambda: rows)
    figure = draw_variances(recorded)
    figure.canvas.draw()
    assert all(axes.get_ylim()[0] < 1.0 and axes.get_ylim()[1] > 900.0 for axes in figure.axes)


def test_the_curves_of_a_figure_are_those_of_the_record(watched: Run, study: Analysis) -> None:
    figure = draw_forgetting(study)
    rows = [row for row in watched.metrics if "own_after_transfer" in row]
    _, own = figure.axes
    gained = [100 * (row["own_after_transfer"] - row["own_before_transfer"]) for row in rows]
    assert own.lines[-1].get_ydata().tolist() == pytest.approx(gained)
    low, high = own.get_xlim()
    assert low <= 10 and high >= 20, "the curve is inside the frame"


def test_analyse_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["analyse", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "no config.toml" in str(result.exception)


def test_analyse_refuses_a_run_without_a_checkpoint(watched: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(watched.folder.config.read_bytes())
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        analyse(Run(tmp_path))
