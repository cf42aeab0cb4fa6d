"""`fedal analyse`: all theory instruments on one run folder, as one JSON document, a table and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedal.analysis.restored import restored
from fedal.data.dataset import Dataset
from fedal.durable import make_folder
from fedal.records.folder import without_nan, write_json
from fedal.records.run import Run
from fedal.records.statistics import Row, round_ends
from fedal.simulate.participation import absence
from fedal.simulate.staged import CustomModels
from fedal.theory.bottlenecks import measure_bottlenecks
from fedal.theory.bounds import Bound, ClientTerms, fedal_bound, fedmd_bound
from fedal.theory.convergence import Convergence, convergence
from fedal.theory.domains import proxy_a_distance
from fedal.theory.equilibrium import Equilibrium, check_equilibrium
from fedal.theory.instruments import mean_over_clients
from fedal.theory.outputs import client_outputs, distances, zeta
from fedal.theory.risks import risk, train_reference
from fedal.theory.view import Columns, FederationView

REFERENCE_STEPS = 500
SIGMAS = ("l", "k", "u", "rl", "rg", "n")


@dataclass(frozen=True)
class Analysis:
    """The measurements of one run after `rounds` rounds; `notes` says what could not be measured and why."""

    run: Run
    rounds: int
    clients: tuple[str, ...]
    terms: dict[str, ClientTerms]
    global_loss: float  # mean over clients of the cross-entropy on the global test set
    bounds: dict[str, Bound]
    equilibrium: Equilibrium
    distances: list[list[float]]  # between the outputs of each pair of clients
    further_round: Columns  # measurements of one more round with all instruments on
    bottlenecks: dict[str, float]  # bias (mean over clients), ensemble accuracy and gap, on the test samples
    convergence: Convergence
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.run.path / "analysis"

    @property
    def variances(self) -> dict[str, dict[str, float]]:
        """sigma -> client -> sigma^2, for the terms that the method has."""
        columns = {name: f"variance_{name}" for name in SIGMAS}
        found = {
            name: {client: row[column] for client, row in self.further_round.items() if column in row}
            for name, column in columns.items()
        }
        return {name: values for name, values in found.items() if values}

    @property
    def forgetting(self) -> dict[str, float]:
        """Mean accuracies before and after the two stages of the further round."""
        row = mean_over_clients(self.further_round)
        return {name: row[name] for name in row if name.startswith(("global_", "own_"))}

    def rows(self) -> list[Row]:
        """The rows at the ends of rounds during training."""
        return round_ends(self.run.metrics, final=False)

    def as_json(self) -> dict[str, Any]:
        config = self.run.config
        document = {
            "method": config.method,
            "dataset": config.dataset,
            "clients": len(self.clients),
            "rounds": self.rounds,
            "iterations": self.rounds * config.tau,
            "complete": self.run.is_complete,
            "zeta": {
                "final": {client: terms.zeta for client, terms in self.terms.items()},
                "uploads": [[row["iteration"], row["disagreement"]] for row in self.rows() if "disagreement" in row],
            },
            "bound": {
                "global_loss": self.global_loss,
                **{name: {**asdict(bound), "total": bound.total} for name, bound in self.bounds.items()},
                "clients": {client: asdict(terms) for client, terms in self.terms.items()},
            },
            "gradient_variances": self.variances,
            "convergence": asdict(self.convergence),
            "equilibrium": {
                **asdict(self.equilibrium),
                "outputs_coincide": self.equilibrium.outputs_coincide,
                "discriminator_at_chance": self.equilibrium.discriminator_at_chance,
                "verdict": self.equilibrium.verdict,
            },
            "forgetting": self.forgetting,
            "bottlenecks": self.bottlenecks,
            "notes": self.notes,
        }
        return {name: without_nan(value) for name, value in document.items()}

    def write(self) -> Path:
        make_folder(self.folder)
        path = self.folder / "analysis.json"
        write_json(path, self.as_json())
        return path


def analyse(
    run: Run,
    *,
    reference_steps: int = REFERENCE_STEPS,
    data: Dataset | None = None,
    public: NDArray[np.float32] | None = None,
    models: CustomModels | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Analysis:
    """Measures a run at its newest checkpoint. With `reference_steps` = 0, lambda_n is not estimated."""
    with restored(run, data=data, public=public, models=models, warn=warn) as found:
        view, notes = found.view, _notes(run, found.rounds)
        outputs = client_outputs(view.learners.values(), view.public)
        terms = _client_terms(view, outputs, reference_steps, notes)
        smallest = min(len(indices) for indices in view.split.clients.values())
        each = list(terms.values())
        equilibrium = check_equilibrium(outputs, view.discriminator, view.clients, run.config.seed)
        data = view.split.dataset
        tests = torch.as_tensor(data.test_x).to(view.public), torch.as_tensor(data.test_y)
        global_loss = fmean(view.workers.map(lambda client: risk(view.learners[client], *tests), view.clients))
        limits = mean_over_clients(measure_bottlenecks(view, whole=True))
        found.panel.begins()
        view.federation.run_round(found.rounds, absence(view.config, found.rounds))
        further = found.panel.ends()
        return Analysis(
            run=run,
            rounds=found.rounds,
            clients=tuple(view.clients),
            terms=terms,
            global_loss=global_loss,
            bounds={"FedAL": fedal_bound(each, smallest), "FedMD": fedmd_bound(each, smallest)},
            equilibrium=equilibrium,
            distances=distances(outputs).tolist(),
            further_round=further,
            bottlenecks=limits,
            convergence=convergence(run, {"round": found.rounds + 1, **mean_over_clients(further)}),
            notes=notes,
        )


def _notes(run: Run, rounds: int) -> list[str]:
    notes = []
    if not run.is_complete:
        notes.append(f"the run is not complete: measured after round {rounds} of {run.config.total_rounds}")
    if not {"zeta", "gradients"} <= set(run.config.instruments):
        notes.append(
            "no curves of zeta_n per client or of gradient norms: to record them during a run, use "
            "--set instruments=forgetting,zeta,gradients"
        )
    return notes


def _client_terms(
    view: FederationView, outputs: torch.Tensor, reference_steps: int, notes: list[str]
) -> dict[str, ClientTerms]:
    data, seed = view.split.dataset, view.config.seed
    zetas = dict(zip(view.clients, zeta(outputs).tolist(), strict=True))
    joint = _joint_losses(view, reference_steps, notes)
    terms = {}
    for client in view.clients:
        own = data.train_x[view.split.clients[client]]
        terms[client] = ClientTerms(
            risk=risk(view.learners[client], *view.private[client]),
            zeta=zetas[client],
            public_distance=proxy_a_distance(view.split.public_x, own, seed),
            global_distance=proxy_a_distance(data.test_x, own, seed),
            joint_loss=joint.get(client),
        )
    return terms


def _joint_losses(view: FederationView, steps: int, notes: list[str]) -> dict[str, float]:
    """lambda_n = loss of f* on D_n + its loss on P, if the labels of P are known."""
    if view.public_labels is None:
        notes.append("lambda_n is omitted: the public inputs have no labels")
        return {}
    if steps == 0:
        notes.append("lambda_n is omitted: it was not requested")
        return {}
    reference = train_reference(view.config, view.split, steps)
    on_public = risk(reference, view.public, view.public_labels)
    return {client: risk(reference, *own) + on_public for client, own in view.private.items()}
