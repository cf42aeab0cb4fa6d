"""Evaluates a run as it trains and writes its record.

The config alone determines which rounds are recorded. Rows are in roster order, whatever the order of the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedal.messages import Outputs
from fedal.methods.server import Uploads, stack_outputs
from fedal.metrics import METRICS, disagreement
from fedal.records.observed import client_numbers, mean_numbers, numbers
from fedal.records.rows import Moment, Record, is_recorded, over_clients
from fedal.simulate.assemble import Assembly
from fedal.simulate.best_models import BestModels
from fedal.theory.instruments import Panel, mean_over_clients
from fedal.theory.view import Columns

DATA = ("test", "validation", "own_validation", "own_test")


@dataclass
class _Observations:
    """What the record needs about the exchanges of one round; filled only in recorded rounds and the last one."""

    recorded: bool = False
    wanted: bool = False
    disagreements: list[torch.Tensor] = field(default_factory=list)
    after_local: Columns = field(default_factory=dict)

    def disagreement(self) -> float | None:
        return float(torch.stack(self.disagreements).mean()) if self.disagreements else None


class Recorder:
    """Records one federation."""

    def __init__(self, assembly: Assembly, record: Record, notify: Callable[[dict[str, Any]], None]) -> None:
        self._view, self._models, self._record, self._notify = assembly.view, assembly.model_names, record, notify
        self._config, self._federation = assembly.view.config, assembly.federation
        self._worst = {f"{data}_{each.name}": each.worst for data in DATA for each in METRICS.values()}
        self._panel = Panel(self._config.instruments, assembly.view)
        self._evaluated = frozenset(assembly.view.evaluated)
        self._seen = _Observations()
        self.best = BestModels(assembly.view)
        self._disagreement_before: float | None = None  # of the last round before the checkpoint
        self._observed: Mapping[str, Mapping[str, Any]] = {}  # by the clients, in the last round
        self._latest = assembly.view.clients  # in the last round; before the first one, all
        self._federation.watch.phase_done = self._phase_done
        self._federation.watch.exchanged = self._exchanged

    def begin(self, t: int, *, last: bool) -> None:
        recorded = is_recorded(t, self._config.tau, self._config.eval_interval)
        self._seen = _Observations(recorded, wanted=recorded or last)
        if recorded:
            self._panel.begins()

    def end(self, rounds: int, present: list[str], seconds: float) -> None:
        """Writes who took part, and the rows of the round if it is recorded."""
        self._record.took_part(rounds - 1, present)
        self._observed, self._latest = self._federation.observed(), present
        if not self._seen.recorded:
            return
        before, extra = self._seen.after_local, self._extra(whole=False)
        if before:
            in_order = {name: before[name] for name in self._view.evaluated if name in before}
            self._write(self._moment(rounds, "after_local"), in_order, extra, present, seconds)
        measured = self._panel.ends()
        extra |= mean_over_clients(measured) | self._client_means()
        tested = self._view.evaluate_all()
        self.best.judge(rounds * self._config.tau, tested)
        self._write(self._moment(rounds), tested, extra, present, seconds, measured)

    def start(self, seconds: float) -> None:
        """Writes the rows of iteration 0: the untrained models, where every curve begins."""
        tested = self._view.evaluate_all()
        self._write(self._moment(0), tested, self._extra(whole=False), self._latest, seconds)

    def final(self, rounds: int, seconds: float) -> dict[str, Any]:
        """Writes the final rows, which tables use: measured on all evaluation data. Returns the run's row."""
        tested, extra = self._view.evaluate_all(whole=True), self._extra(whole=True)
        measured, best = self._panel.final(), self.best.columns()
        columns = {client: {**measured.get(client, {}), **best.get(client, {})} for client in {**measured, **best}}
        extra |= mean_over_clients(columns) | self._client_means()
        return self._write(self._moment(rounds, final=True), tested, extra, self._latest, seconds, columns)

    def state_dict(self) -> dict[str, Any]:
        return {
            "disagreement": self._seen.disagreement(),
            "observed": numbers(self._federation.server.observed, "the server"),
            "observed_by_clients": client_numbers(self._observed),
            **({"best": self.best.state_dict()} if self._config.keep_best else {}),
            "present": self._latest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._disagreement_before = state["disagreement"]
        self._federation.server.observed = dict(state["observed"])
        self._observed = state.get("observed_by_clients", {})
        self.best.load_state_dict(state.get("best", {}))
        self._latest = state.get("present", self._latest)

    # callbacks

    def _phase_done(self, client: str, phase: str) -> None:
        """Measures a client between local training and transfer."""
        if not self._seen.recorded or phase != "after_local":
            return
        if self._config.eval_after_local and client in self._evaluated:
            self._seen.after_local[client] = self._view.evaluate(client)
        self._panel.trained(client)

    def _exchanged(self, uploads: Uploads) -> None:
        if self._seen.wanted and all(isinstance(message, Outputs) for message in uploads.values()):
            _, outputs = stack_outputs(list(uploads), uploads)
            self._seen.disagreements.append(disagreement(outputs))

    # helpers

    def _moment(self, rounds: int, phase: str = "after_global", *, final: bool = False) -> Moment:
        return Moment(rounds, rounds * self._config.tau, phase, final)

    def _extra(self, *, whole: bool) -> dict[str, float]:
        """Values about the server and the exchanges."""
        server = self._federation.server
        extra = numbers(server.observed, "the server")
        zeta = self._seen.disagreement() if self._seen.disagreements else self._disagreement_before
        if zeta is not None:
            extra["disagreement"] = zeta
        if server.learner is not None:
            measured = self._view.tests.evaluate(server.learner, whole=whole)
            extra["server_test_accuracy"] = measured["test_accuracy"]
        return extra

    def _client_means(self) -> dict[str, float]:
        return mean_numbers(client_numbers(self._observed), numbers(self._federation.server.observed, "the server"))

    def _write(
        self,
        moment: Moment,
        tested: Columns,
        extra: Mapping[str, float],
        present: list[str],
        seconds: float,
        columns: Columns | None = None,
    ) -> dict[str, Any]:
        own = {} if moment.phase == "after_local" else client_numbers(self._observed)
        on = {f"{data.name}_samples": len(data.used(whole=moment.final)) for data in self._view.common_sets}
        clients = {
            client: {
                "model": self._models[client],
                "private_samples": len(self._view.split.clients[client]),
                **values,
                **on,
                **(columns or {}).get(client, {}),
                **own.get(client, {}),
            }
            for client, values in tested.items()
        }
        names = dict.fromkeys(name for values in tested.values() for name in values)  # some are not defined everywhere
        columns_of = {name: [values[name] for values in tested.values() if name in values] for name in names}
        attackers = self._config.attacker_table
        if attackers:
            honest = [values["test_accuracy"] for client, values in tested.items() if client not in attackers]
            columns_of |= {"honest_test_accuracy": honest} if honest else {}
        everyone = len(present) if moment.phase == "after_local" else len(self._view.clients)
        share = len(tested) / max(everyone, len(tested))  # of the clients that the means stand for
        measured = {
            key: value
            for name, each in columns_of.items()
            for key, value in over_clients(name, each, self._worst.get(name, "min"), share).items()
        }
        if share < 1:
            measured["evaluated_clients"] = len(tested)
        row = self._record.write(
            moment, self._federation.wire, present, seconds, measured=measured | on, extra=extra, clients=clients
        )
        self._notify(row)
        return row
